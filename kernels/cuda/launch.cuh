// How kernels of a step are started.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/device.h"

namespace ridge::kernels::cuda {

// Starts a kernel so that, where the card can (sm_90), its blocks may come while the kernel before it in the
// stream still runs. The kernel calls WaitForPriorKernel (mma.cuh) before it touches anything that another
// kernel writes. `cluster_depth` blocks along z are one cluster where it is above 1 (sm_90 only).
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependentCluster(void (*kernel)(Parameters...), dim3 blocks, int cluster_depth, int threads,
                                   size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (SupportsDependentLaunch()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster_depth > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {1, 1, static_cast<unsigned>(cluster_depth)};
  }
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes,
                            cudaStream_t stream, Arguments&&... arguments) {
  return LaunchDependentCluster(kernel, blocks, 1, threads, shared_bytes, stream,
                                std::forward<Arguments>(arguments)...);
}

}  // namespace ridge::kernels::cuda
