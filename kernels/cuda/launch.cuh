// How kernels of a step are started.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/device.h"

namespace ridge::kernels::cuda {

// Starts a kernel so that, where the card can (sm_90), its blocks may come while the kernel before it in the
// stream still runs. The kernel calls WaitForPriorKernel (mma.cuh) before it touches anything that another
// kernel writes.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes,
                            cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = SupportsDependentLaunch() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace ridge::kernels::cuda
