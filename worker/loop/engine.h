// The engine: one thread that decides and drives the backend, one thread that hands tokens to their sinks.
//
// Threads: Submit, Finish, Cancel, Drain and Load may be called from any thread. The backend and the
// scheduler are touched by the engine thread only; sinks by the output thread only. Ownership: the engine
// owns its sequences and shares each sink with the caller; backend, clock and metrics outlive it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/backend/backend.h"
#include "worker/decision/engine_policy.h"
#include "worker/decision/sequence.h"

namespace ridge::worker {

class EngineMetrics;

struct EngineConfig {
  int32_t num_blocks = 0;      // KV blocks that the backend reserved
  int32_t max_running = 64;    // sequences in one step; the backend's slots
  int32_t step_tokens = 512;   // rows of one step, decode and prefill together
  int32_t chunk_tokens = 512;  // most rows of one sequence's prefill in one step
  EnginePolicy policy = {};    // of its launch the number of steps in flight is the engine's
  int32_t max_context = 0;     // tokens of a slot, where memory is by slots
};

// A snapshot for load reports and readiness.
struct EngineLoad {
  int32_t running = 0;
  int32_t queued = 0;
  int64_t queued_tokens = 0;  // prompt tokens that wait
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

  // Whether a sequence of this many prompt and generated tokens can ever run here.
  absl::Status CheckFits(int64_t prompt_tokens, int64_t max_tokens) const;

  // Queues a request of so many choices, each of which must fit; its sink hears of it exactly one OnEnd,
  // whatever happens. Choice i has the number i in its draws. Returns the request's id.
  SequenceId Submit(SequenceSpec spec, std::shared_ptr<TokenSink> sink, int32_t num_choices = 1);

  // Ends a request within one step; unknown and ended ids are ignored.
  void Cancel(SequenceId id, absl::Status why);

  // New sequences are refused from now on (their OnEnd says UNAVAILABLE).
  void Drain();

  EngineLoad Load() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ridge::worker
