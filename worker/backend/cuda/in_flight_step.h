// A step between Submit and Collect: its host memory, which is used again for later steps, and what is said
// of it when it fails.
//
// Threads: the engine thread. From Submit until Wait has returned the card reads and writes the pinned
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/step_graphs.h"

namespace ridge::worker {

struct InFlightStep {
  // With memory for up to `max_outputs` outputs, and `control_bytes` for what attaches change (see
  // ControlMemory::UsualStagingBytes).
  static absl::StatusOr<std::unique_ptr<InFlightStep>> Create(int64_t upload_bytes, int64_t result_bytes,
                                                              int64_t max_outputs, int64_t control_bytes);

  // Before it is enqueued: none of its results have arrived. Allocates where logits are asked for.
  absl::Status Prepare(int64_t vocab_size);

  // Whether outputs report the most likely tokens, and the bytes of those of all outputs.
  bool has_top() const;
  int64_t top_bytes() const;
  // Where its logits go; null where nobody asks for them.
  float* host_logits() const { return has_logits ? logits.as<float>() : nullptr; }

  // Until its results are there or the card has an error: polls for a moment, then sleeps.
  cudaError_t Wait() const;
  // The same, for no longer than `most`.
  void WaitFor(std::chrono::nanoseconds most) const;
  // Whether the results have arrived, which are the last of it: no error of the card is this step's then.
  bool HasFinished() const;

  // "step 3 (1 rows, a graph of 1): what".
  absl::Status Error(absl::string_view what) const;
  // "embedding, 2 x qkv matmul": its kernels and copies in the order in which they first come.
  std::string Kernels() const;

  // Of a step that has finished; once.
  StepResult TakeResult(int64_t vocab_size);
  // All that its side's steps have counted so far.
  int64_t saturations() const;

  PinnedMemory upload;
  PinnedMemory results;  // see ResultBytes
  PinnedMemory logits;
  PinnedMemory controls;  // see ControlMemory::Apply
  PinnedMemory top;
  CudaEvent done;

  absl::Status status;  // of submitting it
  StepTicket ticket = 0;
  int side = 0;                              // of StepTransfers
  int32_t num_rows = 0;                      // without padded ones
  const StepGraphs::Graph* graph = nullptr;  // that was replayed; null: none was
  std::vector<const char*> launches;         // kernels and copies beside it, by name
  StepResult counts;                         // outputs are added when they are there
  int32_t num_outputs = 0;
  int32_t padded_outputs = 0;
  std::vector<int32_t> num_top;  // of each output; empty: none reports the most likely tokens
  bool greedy = false;           // its log-probabilities are not written
  bool has_logits = false;
};

}  // namespace ridge::worker
