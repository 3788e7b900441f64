// What the engine measures, under the names that dashboards read (docs/metrics.md).
//
// Threads: the instruments are thread-safe. Ownership: they belong to the registry, which outlives this.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/metrics.h"
#include "worker/decision/scheduler.h"
#include "worker/decision/sequence.h"

namespace ridge::worker {

class EngineMetrics {
 public:
  explicit EngineMetrics(MetricsRegistry* registry);

  // Engine thread: one step was collected.
  void OnStep(int32_t sequences, int32_t decode_rows, int32_t prefill_rows, int64_t duration_ns);
  // Engine thread: where things stand after a step.
  void SetLoad(int32_t running, int32_t waiting, double kv_usage_ratio);
  // Engine thread: counts from the start of the engine, which never go down.
  void SetCounters(int64_t preemptions, const PrefixCounters& prefix, int64_t evictions);

  // Output thread: a token of a stream, before its bookkeeping is brought up to date.
  void OnToken(const OutputStream& stream, int32_t choice, int64_t time_ns);
  // Output thread: the one terminal outcome of a stream.
  void OnEnd(const OutputStream& stream, const Outcome& outcome, int64_t now_ns);

 private:
  prometheus::Counter& FinishedCounter(const Outcome& outcome);

  MetricsRegistry* const registry_;
  prometheus::Histogram& step_decode_;
  prometheus::Histogram& step_prefill_;
  prometheus::Histogram& step_mixed_;
  prometheus::Histogram& step_batch_size_;
  prometheus::Histogram& step_tokens_;
  prometheus::Gauge& kv_usage_;
  prometheus::Gauge& running_;
  prometheus::Gauge& waiting_;
  prometheus::Counter& preemptions_;
  prometheus::Counter& prefix_queries_;
  prometheus::Counter& prefix_hits_;
  prometheus::Counter& prefix_evictions_;
  prometheus::Histogram& time_to_first_token_;
  prometheus::Histogram& inter_token_latency_;
  prometheus::Histogram& e2e_latency_;
  prometheus::Histogram& queue_time_;
  prometheus::Histogram& prefill_time_;
  prometheus::Histogram& decode_time_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& generation_tokens_;
};

}  // namespace ridge::worker
