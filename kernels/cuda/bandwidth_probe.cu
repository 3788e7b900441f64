#include "kernels/cuda/bandwidth_probe.h"

#include "kernels/cuda/mma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;

__global__ void __launch_bounds__(kThreads)
    ReadProbeKernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads * kLoads;
  for (int64_t base = int64_t{blockIdx.x} * kThreads * kLoads + threadIdx.x; base < count; base += stride) {
    uint4 values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      values[i] = base + i * kThreads < count ? LoadStreaming(data + base + i * kThreads) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  }
  // Never equal in practice; keeps the loads alive without a reduction.
  if (sum == 0x9E3779B9u) sink[blockIdx.x] = sum;
}

}  // namespace

cudaError_t LaunchReadProbe(const void* data, int64_t bytes, uint32_t* sink, int num_blocks,
                            cudaStream_t stream) {
  ReadProbeKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(data),
                                                                              bytes / 16, sink);
  return cudaGetLastError();
}

}  // namespace ridge::kernels::cuda
