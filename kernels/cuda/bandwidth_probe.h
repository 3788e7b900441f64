// What the card's memory gives to a kernel that only reads: the denominator of every share in the benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ridge::kernels::cuda {

// Reads `bytes` (a multiple of 16) once, 16 bytes a load, and may write a word a block to `sink`
// [num_blocks]. Geometry: 512 threads a block, 8 independent loads a thread in flight.
[[nodiscard]] cudaError_t LaunchReadProbe(const void* data, int64_t bytes, uint32_t* sink, int num_blocks,
                                          cudaStream_t stream);

}  // namespace ridge::kernels::cuda
