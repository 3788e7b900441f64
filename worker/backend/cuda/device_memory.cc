#include "worker/backend/cuda/device_memory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ridge::worker {
namespace {

absl::Status AllocationError(cudaError_t error, int64_t bytes, absl::string_view what) {
  if (error != cudaErrorMemoryAllocation) return CudaStatus(error, what);
  cudaGetLastError();  // not sticky
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s: %d MiB of memory cannot be had", what, bytes >> 20));
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("CUDA: ", what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

absl::Status CopyToDevice(void* to, const void* from, size_t bytes, absl::string_view what,
                          cudaStream_t stream) {
  return CudaStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), what);
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(int64_t bytes, absl::string_view what) {
  size_t free = 0, total = 0;
  if (absl::Status status = CudaStatus(cudaMemGetInfo(&free, &total), "free memory"); !status.ok())
    return status;
  if (bytes > static_cast<int64_t>(free)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s: %d MiB of the card's memory are needed, %d MiB are missing (%d of %d MiB are free)", what,
        bytes >> 20, ((bytes - static_cast<int64_t>(free)) >> 20) + 1, free >> 20, total >> 20));
  }
  DeviceMemory memory;
  if (cudaError_t error = cudaMalloc(&memory.data_, static_cast<size_t>(bytes)); error != cudaSuccess) {
    return AllocationError(error, bytes, what);
  }
  memory.bytes_ = bytes;
  return memory;
}

DeviceMemory::~DeviceMemory() {
  cudaFree(data_);
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(int64_t bytes, absl::string_view what) {
  PinnedMemory memory;
  if (cudaError_t error = cudaMallocHost(&memory.data_, static_cast<size_t>(bytes)); error != cudaSuccess) {
    return AllocationError(error, bytes, what);
  }
  memory.bytes_ = bytes;
  return memory;
}

PinnedMemory::~PinnedMemory() {
  cudaFreeHost(data_);
}

absl::StatusOr<CudaStream> CudaStream::Create() {
  CudaStream stream;
  absl::Status status =
      CudaStatus(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking), "stream");
  if (!status.ok()) return status;
  return stream;
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<CudaEvent> CudaEvent::Create(unsigned flags) {
  CudaEvent event;
  absl::Status status =
      CudaStatus(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming | flags), "event");
  if (!status.ok()) return status;
  return event;
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

}  // namespace ridge::worker
