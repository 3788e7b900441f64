// RMSNorm of fp32 rows to fp16. rms_norm.cuh has the same as device functions, for a matmul's prologue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/half.h"

namespace ridge::kernels::cuda {

struct RmsNormArgs {
  const float* x;       // row r at x + rows[r] * size, or x + r * size where rows is null
  const int32_t* rows;  // [num_rows] or null: the rows to take (those that want an output)
  const float* weight;  // [size]
  Half* out;            // [num_rows][size]
  int32_t num_rows;
  int32_t size;  // a multiple of 16, at most 65,536
  float eps;
  unsigned long long* saturations;  // grows by what fp16 could not hold
};

[[nodiscard]] cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
