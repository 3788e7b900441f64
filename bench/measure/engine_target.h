// An engine in this process, without service and network: the measured ladder runs on it, on the real clock
// or, with a simulated device, on a virtual one.
//
// One thread does everything: it hands sequences to the engine when their time has come, runs steps, and
// sleeps (or moves the virtual clock) where nothing runs. A token has the time at which its step was
// collected.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/measure/target.h"
#include "common/metrics.h"
#include "worker/loop/engine_core.h"

namespace ridge::bench {

class EngineTarget : public Target {
 public:
  // `wait_until` returns when the clock has come to a time. The backend has reserved its memory; it and the
  // clock outlive this.
  EngineTarget(const worker::EngineConfig& config, worker::Backend* backend, Clock* clock,
               std::function<void(int64_t time_ns)> wait_until);

  absl::StatusOr<std::vector<TargetResult>> Run(absl::Span<const TargetRequest> requests,
                                                const RunLimits& limits) override;

  // Of all runs together.
  const worker::EngineTotals& totals() const { return core_.totals(); }
  // Most blocks that were held at once since the last call.
  int64_t TakePeakBlocks();

 private:
  void Add(const TargetRequest& request, int64_t due_ns, size_t index);
  void Deliver(const std::vector<worker::OutputItem>& items);

  const worker::EngineConfig config_;
  Clock* const clock_;
  const std::function<void(int64_t)> wait_until_;
  MetricsRegistry registry_;
  worker::EngineMetrics metrics_;
  worker::EngineCore core_;
  worker::SequenceId next_id_ = 0;
  int64_t least_free_blocks_;

  // Of the run under way.
  worker::SequenceId first_id_ = 0;
  int64_t begin_ns_ = 0;
  std::vector<TargetResult>* results_ = nullptr;
  size_t ended_ = 0;
};

}  // namespace ridge::bench
