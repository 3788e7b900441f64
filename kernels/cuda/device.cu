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

cudaError_t ProbeCooperativeLaunch(int blocks, cudaStream_t stream) {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(EmptyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  error = cudaLaunchKernelEx(&config, EmptyKernel);
  cudaGetLastError();  // told; not an error that a later call should report
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
