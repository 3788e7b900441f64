// A step's bytes to the card and its results back, beside the stream of its kernels: each way has a stream of
// its own, and two steps in turn have memory of their own on the card. So the next step's bytes arrive while
// this one's kernels run, and its kernels begin while this one's results leave.
//
// Threads: the engine thread. Nothing here waits for the card but Synchronize, or allocates after Create.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/device_memory.h"

namespace ridge::worker {

class StepTransfers {
 public:
  // Steps that have memory of their own; step n has that of side n % kSides.
  static constexpr int kSides = 2;

  // Zeroed memory. `kernels`: the stream that reads and writes it; borrowed.
  static absl::StatusOr<StepTransfers> Create(int64_t upload_bytes, int64_t result_bytes,
                                              cudaStream_t kernels);

  const char* upload(int side) const { return sides_[side].upload.as<char>(); }
  char* results(int side) const { return sides_[side].results.as<char>(); }

  // Enqueues the copy of a step's bytes, for which kernels that are enqueued from now on wait; and which
  // waits for the side's step before, and its results.
  absl::Status Upload(int side, const PinnedMemory& from, int64_t bytes);

  // Enqueues the copy of what the kernels enqueued so far leave in the side's results, and `done` behind it.
  absl::Status Download(int side, const PinnedMemory& to, int64_t bytes, const CudaEvent& done);

  // Waits for both ways.
  absl::Status Synchronize() const;

 private:
  struct Side {
    DeviceMemory upload;
    DeviceMemory results;
    CudaEvent uploaded, computed, downloaded;
  };

  cudaStream_t kernels_ = nullptr;
  CudaStream up_, down_;
  std::array<Side, kSides> sides_;
};

}  // namespace ridge::worker
