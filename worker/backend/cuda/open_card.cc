#include "worker/backend/cuda/open_card.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/backend/cuda/device_memory.h"

namespace ridge::worker {
namespace {

std::string Version(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

std::string Capability(const kernels::cuda::DeviceInfo& card) {
  return absl::StrFormat("compute capability %d.%d", card.capability / 10, card.capability % 10);
}

}  // namespace

CardCount CountCards() {
  CardCount cards;
  cards.error = cudaGetDeviceCount(&cards.count);
  cudaGetLastError();  // no driver, no card: not an error that a later call should report
  if (cards.error != cudaSuccess) cards.count = 0;
  cudaDriverGetVersion(&cards.driver_version);
  cudaRuntimeGetVersion(&cards.runtime_version);
  return cards;
}

std::string Obstacle(const CardCount& cards) {
  if (cards.driver_version == 0) return "no CUDA driver is installed (libcuda.so.1)";
  if (cards.error == cudaErrorInsufficientDriver) {
    return absl::StrFormat("the driver serves CUDA %s; this build needs one for CUDA %s or later",
                           Version(cards.driver_version), Version(cards.runtime_version));
  }
  if (cards.error == cudaErrorNoDevice || (cards.error == cudaSuccess && cards.count == 0)) {
    return "the CUDA driver sees no card (CUDA_VISIBLE_DEVICES may hide them)";
  }
  if (cards.error != cudaSuccess) {
    return absl::StrCat("the CUDA driver does not start: ", cudaGetErrorName(cards.error), ": ",
                        cudaGetErrorString(cards.error));
  }
  return "";
}

std::string Obstacle(const kernels::cuda::DeviceInfo& card, cudaError_t first_launch) {
  if (card.capability < kernels::cuda::kMinCapability) {
    return absl::StrCat(card.name, " has ", Capability(card), "; 8.0 is needed");
  }
  if (first_launch == cudaErrorNoKernelImageForDevice || first_launch == cudaErrorInvalidDeviceFunction ||
      first_launch == cudaErrorUnsupportedPtxVersion) {
    return absl::StrCat("this build has no code for ", card.name, ", ", Capability(card),
                        " (RIDGE_CUDA_ARCHITECTURES, RIDGE_CUDA_PTX)");
  }
  if (first_launch != cudaSuccess) {
    return absl::StrCat(card.name, " does not run its first kernel: ", cudaGetErrorName(first_launch), ": ",
                        cudaGetErrorString(first_launch));
  }
  return "";
}

absl::StatusOr<kernels::cuda::DeviceInfo> OpenCard() {
  if (std::string obstacle = Obstacle(CountCards()); !obstacle.empty()) {
    return absl::FailedPreconditionError(obstacle);
  }
  kernels::cuda::DeviceInfo card;
  absl::Status status = CudaStatus(cudaSetDevice(0), "opening the card");
  if (status.ok()) status = CudaStatus(kernels::cuda::GetDeviceInfo(&card), "opening the card");
  if (!status.ok()) return absl::FailedPreconditionError(status.message());
  const bool is_old = card.capability < kernels::cuda::kMinCapability;
  const cudaError_t first_launch = is_old ? cudaSuccess : kernels::cuda::ProbeLaunch(nullptr);
  if (std::string obstacle = Obstacle(card, first_launch); !obstacle.empty()) {
    return absl::FailedPreconditionError(obstacle);
  }
  return card;
}

std::string Describe(const kernels::cuda::DeviceInfo& card) {
  return absl::StrFormat("%s (sm_%d, %d MiB, %d SMs at up to %d MHz, memory at %d MHz, driver for CUDA %s)",
                         card.name, card.capability, card.memory_bytes >> 20, card.num_sms, card.sm_clock_mhz,
                         card.memory_clock_mhz, Version(card.driver_version));
}

}  // namespace ridge::worker
