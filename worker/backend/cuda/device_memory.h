// Memory of the card, pinned memory of the host, streams and events as values that free themselves.
//
// Threads: as the CUDA runtime, any; the owner sees to the order of use. Errors are RESOURCE_EXHAUSTED where
// memory is short (with how much is missing), INTERNAL for everything else.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

// OK, or INTERNAL with CUDA's name for the error and what was being done.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// From ordinary memory, which may go when this returns. In the stream's order: a plain cudaMemcpy goes its
// own way, and may return before the copy has arrived.
absl::Status CopyToDevice(void* to, const void* from, size_t bytes, absl::string_view what,
                          cudaStream_t stream);

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory();

  // Uninitialised. `what` names the use in an error.
  static absl::StatusOr<DeviceMemory> Allocate(int64_t bytes, absl::string_view what);

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedMemory();

  static absl::StatusOr<PinnedMemory> Allocate(int64_t bytes, absl::string_view what);

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class CudaStream {
 public:
  CudaStream() = default;
  CudaStream(CudaStream&& other) noexcept { *this = std::move(other); }
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStream();

  static absl::StatusOr<CudaStream> Create();
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Without timing: only to wait for.
class CudaEvent {
 public:
  CudaEvent() = default;
  CudaEvent(CudaEvent&& other) noexcept { *this = std::move(other); }
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent();

  // Threads wait for it asleep.
  static absl::StatusOr<CudaEvent> Create() { return Create(cudaEventBlockingSync); }
  // Streams alone wait for it: the card tells the host nothing.
  static absl::StatusOr<CudaEvent> CreateForStreams() { return Create(0); }
  cudaEvent_t get() const { return event_; }

 private:
  static absl::StatusOr<CudaEvent> Create(unsigned flags);

  cudaEvent_t event_ = nullptr;
};

}  // namespace ridge::worker
