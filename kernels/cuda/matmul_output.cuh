// What happens to a finished sum: shared by the matmul kernels, and with it the bits.
#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rounding.cuh"
#include "kernels/cuda/silu_mul.cuh"

namespace ridge::kernels::cuda {

// Sums of one token and of rows `row` and `row` + 8 of W, where row % 16 < 8. Rows beyond n and tokens beyond m are left out.
__device__ inline void WriteSums(const MatmulArgs& args, int token, int row, float low, float high) {
  if (token >= args.m || row >= args.n) return;
  const bool has_high = row + 8 < args.n;
  if (args.bias != nullptr) {
    low = __fadd_rn(low, args.bias[row]);
    if (has_high) high = __fadd_rn(high, args.bias[row + 8]);
  }
  if (args.output == MatmulOutput::kSwiGlu) {
    Half* gated = args.gated + static_cast<int64_t>(token) * (args.n / 2) + row / 16 * 8 + row % 8;
    *gated = __half_as_ushort(SaturateToHalf(SiluMul(low, high), args.saturations));
    return;
  }
  float* y = args.y + token * args.y_stride + row;
  if (args.output == MatmulOutput::kResidual) {
    low = __fadd_rn(y[0], low);
    if (has_high) high = __fadd_rn(y[8], high);
  }
  y[0] = low;
  if (has_high) y[8] = high;
}

}  // namespace ridge::kernels::cuda
