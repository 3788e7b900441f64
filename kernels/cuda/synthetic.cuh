// Elements of a made-up tensor (SyntheticTensor in packing.h), the same bits as worker/model/synthetic.h's.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {

__device__ inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The bits of an element.
__device__ inline uint32_t SyntheticBits(const SyntheticTensor& tensor, uint64_t index) {
  const int32_t integer =
      static_cast<int32_t>(Mix(tensor.key + index * 0x9E3779B97F4A7C15u) >> 40) - (1 << 23);
  const float value = __fmul_rn(static_cast<float>(tensor.offset + (integer >> tensor.shift)), tensor.scale);
  return __half_as_ushort(__float2half_rn(value));
}

}  // namespace ridge::kernels::cuda
