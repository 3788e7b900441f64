// Penalties, biases and masks of sampling. Part of LaunchSampling.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sampling.h"

namespace ridge::kernels::cuda {

// Writes the logits of the controlled rows, after their controls, to args.controls.logits.
[[nodiscard]] cudaError_t LaunchControls(const SamplingArgs& args, int32_t parts, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
