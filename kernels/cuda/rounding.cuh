// How device code rounds an activation to fp16.
#pragma once

#include <cuda_fp16.h>

#include "kernels/half.h"

namespace ridge::kernels::cuda {

// RoundToHalf of kernels/half.h: saturates at +-65504 and counts how often it had to, where there is a
// counter.
__device__ inline __half SaturateToHalf(float value, unsigned long long* saturations) {
  if (fabsf(value) > kHalfMax) {
    if (saturations != nullptr) atomicAdd(saturations, 1ull);
    value = copysignf(kHalfMax, value);
  }
  return __float2half_rn(value);
}

__device__ inline __half2 SaturateToHalf2(float low, float high, unsigned long long* saturations) {
  return __halves2half2(SaturateToHalf(low, saturations), SaturateToHalf(high, saturations));
}

}  // namespace ridge::kernels::cuda
