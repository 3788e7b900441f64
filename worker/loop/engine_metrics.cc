#include "worker/loop/engine_metrics.h"

#include <string>

namespace ridge::worker {
namespace {

constexpr double kSecondsPerNs = 1e-9;
constexpr char kStepDuration[] = "ridge_step_duration_seconds";
constexpr char kStepDurationHelp[] = "Time of one forward pass, by what it carried.";
constexpr char kRequestSuccess[] = "ridge_request_success_total";
constexpr char kRequestSuccessHelp[] = "Requests that ended, by reason; each request counts once.";

// Every value of the label finished_reason.
constexpr const char* kFinishedReasons[] = {"stop",     "length",   "context", "cancelled",
                                            "deadline", "overload", "error"};

std::string FinishedReason(const Outcome& outcome) {
  switch (outcome.status.code()) {
    case absl::StatusCode::kOk:
      break;
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    case absl::StatusCode::kResourceExhausted:
      return "overload";
    default:
      return "error";
  }
  switch (outcome.reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
  }
  return "error";
}

}  // namespace

EngineMetrics::EngineMetrics(MetricsRegistry* registry)
    : registry_(registry),
      step_decode_(
          registry->Histogram(kStepDuration, kStepDurationHelp, StepBuckets(), {{"kind", "decode"}})),
      step_prefill_(
          registry->Histogram(kStepDuration, kStepDurationHelp, StepBuckets(), {{"kind", "prefill"}})),
      step_mixed_(registry->Histogram(kStepDuration, kStepDurationHelp, StepBuckets(), {{"kind", "mixed"}})),
      step_batch_size_(registry->Histogram("ridge_step_batch_size", "Sequences in a step.", CountBuckets())),
      step_tokens_(registry->Histogram("ridge_step_tokens", "Tokens put through the model in a step.",
                                       CountBuckets())),
      kv_usage_(
          registry->Gauge("ridge_kv_cache_usage_ratio", "Share of the KV blocks that are in use, 0 to 1.")),
      running_(registry->Gauge("ridge_num_requests_running", "Sequences that run.")),
      waiting_(registry->Gauge("ridge_num_requests_waiting", "Sequences that wait for admission.")),
      preemptions_(
          registry->Counter("ridge_num_preemptions_total",
                            "Times that a sequence gave its memory back and had to be computed again.")),
      prefix_queries_(
          registry->Counter("ridge_prefix_cache_queries_total", "Tokens looked up in the prefix cache.")),
      prefix_hits_(registry->Counter("ridge_prefix_cache_hits_total", "Tokens found in the prefix cache.")),
      prefix_evictions_(registry->Counter("ridge_prefix_cache_evictions_total",
                                          "Blocks that the prefix cache lost to new sequences.")),
      time_to_first_token_(registry->Histogram("ridge_time_to_first_token_seconds",
                                               "From arrival to the first token.", LatencyBuckets())),
      inter_token_latency_(registry->Histogram("ridge_inter_token_latency_seconds",
                                               "Gap between consecutive tokens of a request.",
                                               StepBuckets())),
      e2e_latency_(registry->Histogram("ridge_e2e_request_latency_seconds",
                                       "From arrival to the end of a request.", LatencyBuckets())),
      queue_time_(registry->Histogram("ridge_request_queue_time_seconds",
                                      "From arrival to the first step that worked on the request.",
                                      LatencyBuckets())),
      prefill_time_(registry->Histogram("ridge_request_prefill_time_seconds",
                                        "From there to the first token.", LatencyBuckets())),
      decode_time_(registry->Histogram("ridge_request_decode_time_seconds",
                                       "From the first token to the last.", LatencyBuckets())),
      prompt_tokens_(
          registry->Counter("ridge_prompt_tokens_total", "Prompt tokens of requests that gave a token.")),
      generation_tokens_(
          registry->Counter("ridge_generation_tokens_total", "Tokens generated for requests.")) {
  // A series that is absent until its first event cannot be told from a broken one.
  for (const char* reason : kFinishedReasons) {
    registry->Counter(kRequestSuccess, kRequestSuccessHelp, {{"finished_reason", reason}});
  }
}

void EngineMetrics::OnStep(int32_t sequences, int32_t decode_rows, int32_t prefill_rows,
                           int64_t duration_ns) {
  prometheus::Histogram& kind = prefill_rows == 0  ? step_decode_
                                : decode_rows == 0 ? step_prefill_
                                                   : step_mixed_;
  kind.Observe(duration_ns * kSecondsPerNs);
  step_batch_size_.Observe(sequences);
  step_tokens_.Observe(decode_rows + prefill_rows);
}

void EngineMetrics::SetLoad(int32_t running, int32_t waiting, double kv_usage_ratio) {
  running_.Set(running);
  waiting_.Set(waiting);
  kv_usage_.Set(kv_usage_ratio);
}

void EngineMetrics::SetCounters(int64_t preemptions, const PrefixCounters& prefix, int64_t evictions) {
  const auto advance = [](prometheus::Counter& counter, int64_t total) {
    counter.Increment(static_cast<double>(total) - counter.Value());
  };
  advance(preemptions_, preemptions);
  advance(prefix_queries_, prefix.queries);
  advance(prefix_hits_, prefix.hits);
  advance(prefix_evictions_, evictions);
}

void EngineMetrics::OnToken(const OutputStream& stream, int32_t choice, int64_t time_ns) {
  generation_tokens_.Increment();
  const OutputStream::Choice& progress = stream.choices[static_cast<size_t>(choice)];
  if (stream.first_token_ns == 0) {
    prompt_tokens_.Increment(stream.prompt_tokens);
    time_to_first_token_.Observe((time_ns - stream.arrival_ns) * kSecondsPerNs);
  }
  if (progress.tokens > 0) {
    inter_token_latency_.Observe((time_ns - progress.last_token_ns) * kSecondsPerNs);
  }
}

void EngineMetrics::OnEnd(const OutputStream& stream, const Outcome& outcome, int64_t now_ns) {
  FinishedCounter(outcome).Increment();
  if (!outcome.status.ok()) return;  // times of requests that were cut short say nothing about the service
  e2e_latency_.Observe((now_ns - stream.arrival_ns) * kSecondsPerNs);
  queue_time_.Observe((outcome.admitted_ns - stream.arrival_ns) * kSecondsPerNs);
  prefill_time_.Observe((stream.first_token_ns - outcome.admitted_ns) * kSecondsPerNs);
  decode_time_.Observe((stream.last_token_ns - stream.first_token_ns) * kSecondsPerNs);
}

prometheus::Counter& EngineMetrics::FinishedCounter(const Outcome& outcome) {
  return registry_->Counter(kRequestSuccess, kRequestSuccessHelp,
                            {{"finished_reason", FinishedReason(outcome)}});
}

}  // namespace ridge::worker
