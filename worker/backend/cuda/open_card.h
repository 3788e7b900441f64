// Choosing a card, and why it cannot be used where it cannot.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"

namespace ridge::worker {

// What the driver says before any card is opened.
struct CardCount {
  cudaError_t error = cudaSuccess;  // of counting them
  int count = 0;
  int driver_version = 0;   // the CUDA that the driver serves, 13000 for 13.0; 0: no driver
  int runtime_version = 0;  // the CUDA of this build
};

CardCount CountCards();

// Why there is no card to open, in one line; empty where there is.
std::string Obstacle(const CardCount& cards);
// The same for an opened card: `first_launch` is what its first kernel gave.
std::string Obstacle(const kernels::cuda::DeviceInfo& card, cudaError_t first_launch);

// Runs a kernel on the first of those that this process sees (CUDA_VISIBLE_DEVICES), which is every thread's.
// FAILED_PRECONDITION with the obstacle.
absl::StatusOr<kernels::cuda::DeviceInfo> OpenCard();

// "NVIDIA A10 (sm_86, 22731 MiB, 72 SMs at up to 1695 MHz, memory at 6251 MHz, driver for CUDA 13.0)".
std::string Describe(const kernels::cuda::DeviceInfo& card);

}  // namespace ridge::worker
