// The card: which one, what it can do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace ridge::kernels::cuda {

struct DeviceInfo {
  std::string name;  // "NVIDIA H200"
  int capability;    // 90 for compute capability 9.0
  int num_sms;
  int64_t memory_bytes;
  int64_t shared_bytes_per_block;  // the most that a kernel may opt into
  int sm_clock_mhz;                // the highest
  int memory_clock_mhz;
  int driver_version;  // 13000 for 13.0
  int runtime_version;
};

// Cards older than this lack cp.async and the mma shapes of the numerics contract.
inline constexpr int kMinCapability = 80;

// How many cards this process can use; 0 where there is no driver.
int DeviceCount();

// Of the device that was chosen with cudaSetDevice (0 otherwise).
cudaError_t GetDeviceInfo(DeviceInfo* info);

// Runs an empty kernel: fails where the binary has no code for the card, or the card is lost.
cudaError_t ProbeLaunch(cudaStream_t stream);

// Whether so many blocks of a cooperative launch can be resident at once, where each takes all of a
// multiprocessor's shared memory that a block may have: a part of the card may be another's (MPS, MIG). The
// launch's own error; it is not sticky.
cudaError_t ProbeCooperativeLaunch(int blocks, cudaStream_t stream);

// Whether the code that runs here was compiled for sm_90 or later, where a kernel may start before the one
// before it ends.
bool SupportsDependentLaunch();

}  // namespace ridge::kernels::cuda
