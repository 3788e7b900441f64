// Weights as libraries read a matrix: one row after the other.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/packing.h"
#include "kernels/half.h"

namespace ridge::kernels::cuda {

// Generates elements [0, count) of a made-up tensor, `count` even; 4-byte aligned.
[[nodiscard]] cudaError_t LaunchGenerateRows(const SyntheticTensor& tensor, int64_t count, Half* out,
                                             cudaStream_t stream);

}  // namespace ridge::kernels::cuda
