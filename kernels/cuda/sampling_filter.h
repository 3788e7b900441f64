// top_k and top_p of sampling: which candidates are kept. Part of LaunchSampling.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sampling_row.cuh"

namespace ridge::kernels::cuda {

// Fills buffers.threshold of the rows that have top_k or top_p, from logits and buffers.part_best and
// slice_best.
[[nodiscard]] cudaError_t LaunchSamplingFilter(const SamplingArgs& args, const SamplingBuffers& buffers,
                                               cudaStream_t stream);

}  // namespace ridge::kernels::cuda
