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

// The same for clusters of `cluster` blocks along x (sm_90 only), as a configuration for cudaLaunchKernelEx.
class ClusterLaunch {
 public:
  ClusterLaunch(dim3 blocks, int cluster, int threads, size_t shared_bytes, cudaStream_t stream) {
    config_.gridDim = blocks;
    config_.blockDim = dim3(static_cast<unsigned>(threads));
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = stream;
    config_.attrs = attributes_;
    config_.numAttrs = 2;
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[0].val.programmaticStreamSerializationAllowed = SupportsDependentLaunch();
    attributes_[1].id = cudaLaunchAttributeClusterDimension;
    attributes_[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2] = {};
};

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes,
                            cudaStream_t stream, Arguments&&... arguments) {
  return LaunchDependentCluster(kernel, blocks, 1, threads, shared_bytes, stream,
                                std::forward<Arguments>(arguments)...);
}

}  // namespace ridge::kernels::cuda
