// RoPE's arithmetic on one pair.
#pragma once

namespace ridge::kernels::cuda {

// (low, high) = (low cos - high sin, high cos + low sin): the products with the sine are rounded, the others
// fused with the sum.
__device__ inline void Rotate(float cosine, float sine, float* low, float* high) {
  const float x = *low;
  *low = __fmaf_rn(x, cosine, -__fmul_rn(*high, sine));
  *high = __fmaf_rn(*high, cosine, __fmul_rn(x, sine));
}

}  // namespace ridge::kernels::cuda
