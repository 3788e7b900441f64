#include "kernels/cuda/device.h"

namespace ridge::kernels::cuda {
namespace {

__global__ void EmptyKernel() {}

}  // namespace

int DeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver, no device: not an error that a later call should report
    return 0;
  }
  return count;
}

cudaError_t GetDeviceInfo(DeviceInfo* info) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  cudaDeviceProp properties;
  error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  info->name = properties.name;
  info->capability = properties.major * 10 + properties.minor;
  info->num_sms = properties.multiProcessorCount;
  info->memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info->l2_bytes = properties.l2CacheSize;
  info->shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  int khz = 0;
  error = cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device);
  if (error != cudaSuccess) return error;
  info->sm_clock_mhz = khz / 1000;
  error = cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device);
  if (error != cudaSuccess) return error;
  info->memory_clock_mhz = khz / 1000;
  error = cudaDriverGetVersion(&info->driver_version);
  if (error != cudaSuccess) return error;
  return cudaRuntimeGetVersion(&info->runtime_version);
}

cudaError_t ProbeLaunch(cudaStream_t stream) {
  EmptyKernel<<<1, 32, 0, stream>>>();
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? error : cudaStreamSynchronize(stream);
}

bool SupportsDependentLaunch() {
  static const bool supported = [] {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, EmptyKernel) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return supported;
}

}  // namespace ridge::kernels::cuda
