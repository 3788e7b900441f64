// The device behind the engine. Everything that an engine knows of a device is here.
//
// Threads: all calls come from the engine thread, except Info(), which any thread may call. Ownership: the
// backend owns weights, KV memory and slot state; plans are copied or consumed before Submit returns.
// Contract: the tokens and logits of a row depend on its sequence's tokens, position and sampling parameters
// alone, never on the other segments of the plan, on how a prefill was cut, or on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/step_plan.h"

namespace ridge::worker {

struct BackendInfo {
  std::string device;       // for people: "cpu: AMD EPYC (avx2, 2 threads)"
  std::string numerics_id;  // equal ids promise equal bits, unless it begins with kCublasLtPrefix
  int64_t kv_block_bytes;   // one block of kBlockTokens tokens, all layers
  int64_t memory_bytes;     // of the device
  int64_t weight_bytes;     // as held on the device
  int32_t vocab_size;
  // Penalties, token controls, banned tokens, top log-probabilities, scored rows and block copies. Without it
  // plans hold none of them.
  bool extended_sampling = false;
};

// What begins the numerics id of a backend whose matmuls are a library's: its bits depend on batch mates too.
inline constexpr char kCublasLtPrefix[] = "cublaslt-";

struct BackendLimits {
  int32_t max_slots;      // sequences that run at once
  int32_t max_step_rows;  // rows of one plan
};

// Names a submitted step; tickets count up from 0.
using StepTicket = uint64_t;

inline constexpr int64_t kDefaultKvBytes = int64_t{1} << 30;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const BackendInfo& Info() const = 0;

  // How many blocks to reserve where nobody has said. A card is ours: all that it has left beside weights and
  // working memory. The host's memory is others' too: kDefaultKvBytes. RESOURCE_EXHAUSTED says how much is
  // missing for one. Before Reserve, with the same limits, at most once.
  virtual absl::StatusOr<int32_t> DefaultBlocks(const BackendLimits&) {
    return static_cast<int32_t>(std::clamp<int64_t>(kDefaultKvBytes / Info().kv_block_bytes, 1, INT32_MAX));
  }

  // Allocates the KV pool and all working memory; once, before the first Submit. RESOURCE_EXHAUSTED says how
  // much is missing. The pool is zeroed here and never again.
  virtual absl::Status Reserve(int32_t num_blocks, const BackendLimits& limits) = 0;

  // Starts a step and returns without waiting for it. Steps run in the order of submission. A malformed plan
  // is a bug of the caller (CHECK).
  virtual StepTicket Submit(const StepPlan& plan) = 0;

  // Returns when the oldest step that was not collected has ended, or after `most_ns` at the latest. A
  // backend that cannot tell returns at once.
  virtual void WaitFor(StepTicket /*ticket*/, int64_t /*most_ns*/) {}

  // Waits for a step. Tickets are collected in order, each once. An error means that the device is lost: the
  // process should end.
  virtual absl::StatusOr<StepResult> Collect(StepTicket ticket) = 0;
};

}  // namespace ridge::worker
