// The engine: one thread that decides and drives the backend, one thread that hands tokens to their sinks.
//
// Threads: Submit, Finish, Cancel, Drain and Load may be called from any thread. The backend and the
// scheduler are touched by the engine thread only; sinks by the output thread only. Ownership: the engine
// owns its sequences and shares each sink with the caller; backend, clock and metrics outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/backend/backend.h"
#include "worker/decision/engine_policy.h"
#include "worker/decision/sequence.h"

namespace ridge::worker {

class EngineMetrics;

struct EngineConfig {
  int32_t num_blocks = 0;                   // KV blocks that the backend reserved
  int32_t max_running = 64;                 // sequences in one step; the backend's slots
  int32_t step_tokens = 512;                // rows of one step, decode and prefill together
  int32_t chunk_tokens = 512;               // most rows of one sequence's prefill in one step
  int32_t max_queued_requests = INT32_MAX;  // that wait; more are refused
  int64_t max_queued_tokens = INT64_MAX;    // prompt tokens that wait; one request always may
  int64_t queue_timeout_ns = INT64_MAX;     // for the first admission; who waited longer is refused
  EnginePolicy policy = {};                 // of its launch the number of steps in flight is the engine's
  int32_t max_context = 0;                  // most tokens of a sequence: of a slot, where memory is by slots
};

// Whether a sequence of this many prompt and generated tokens can ever run in such an engine: where it
// cannot, RESOURCE_EXHAUSTED says what it needs and what there is. One that does not fit would wait for ever.
absl::Status CheckFits(const EngineConfig& config, int64_t prompt_tokens, int64_t max_tokens);

// When a request that was refused may try again: a second for each full batch that waits, at most 30.
inline absl::Duration RetryDelay(int32_t queued, int32_t max_running) {
  return absl::Seconds(std::min(30, 1 + queued / max_running));
}

// A snapshot for load reports and readiness.
struct EngineLoad {
  int32_t running = 0;
  int32_t queued = 0;
  int64_t queued_tokens = 0;  // prompt tokens that wait
  int32_t queue_room = 0;     // requests that are still taken; 0: new ones are refused at present
  int64_t free_blocks = 0;
  bool draining = false;
};

class Engine {
 public:
  Engine(const EngineConfig& config, Backend* backend, Clock* clock, EngineMetrics* metrics);
  // Ends what is left with CANCELLED and joins the threads.
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // As above, for this engine.
  absl::Status CheckFits(int64_t prompt_tokens, int64_t max_tokens) const;

  // Queues a request of so many choices, each of which must fit; its sink hears of it exactly one OnEnd,
  // whatever happens; where the queue is full that is RESOURCE_EXHAUSTED and when to try again. Choice i has
  // the number i in its draws. Returns the request's id.
  SequenceId Submit(SequenceSpec spec, std::shared_ptr<TokenSink> sink, int32_t num_choices = 1);

  // Ends a request within one step; unknown and ended ids are ignored.
  void Cancel(SequenceId id, absl::Status why);

  // New sequences are refused from now on (their OnEnd says UNAVAILABLE).
  void Drain();

  EngineLoad Load() const;

  // For how long there has been work and no step has ended: a device or an engine that hangs. 0 while steps
  // make progress and where there is nothing to do.
  int64_t StalledNs() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ridge::worker
