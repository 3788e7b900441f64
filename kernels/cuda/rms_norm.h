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
  int32_t size;  // a multiple of 16, at most kMaxNormSize
  float eps;
  unsigned long long* saturations;  // grows by what fp16 could not hold
  // Where not null, what a matmul left to be added to x (MatmulOutput::kPartials): chunk sums [num_partials]
  // [partial_rows][size], in ascending order, and then to x. x + they goes to y, in x's place. Up to
  // kMaxNormPartials of rows of up to kMaxPartialSize.
  const float* partials = nullptr;
  int32_t num_partials = 0;
  int32_t partial_rows = 0;
  float* y = nullptr;  // may be x
};

inline constexpr int32_t kMaxNormSize = 65536;
inline constexpr int32_t kMaxNormPartials = 8;
inline constexpr int32_t kMaxPartialSize = 8192;

[[nodiscard]] cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
