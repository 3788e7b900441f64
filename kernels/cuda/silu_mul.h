// SwiGLU's gate: fp16(SiLU(gate) * up). silu_mul.cuh has it as a device function, for a matmul's epilogue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/half.h"

namespace ridge::kernels::cuda {

struct SiluMulArgs {
  // Value i of row r at gate[r * row_stride + i * column_stride], up likewise: column_stride 2 takes a matrix
  // whose columns alternate between the two.
  const float* gate;
  const float* up;
  int64_t row_stride;
  int64_t column_stride;
  Half* out;  // [num_rows][size]
  int32_t num_rows;
  int32_t size;
  unsigned long long* saturations;
};

[[nodiscard]] cudaError_t LaunchSiluMul(const SiluMulArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
