#include "bench/measure/engine_target.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace ridge::bench {
namespace {

std::string EndOf(const worker::Outcome& outcome) {
  if (!outcome.status.ok()) return absl::StatusCodeToString(outcome.status.code());
  switch (outcome.reason) {
    case worker::FinishReason::kStop:
      return "stop";
    case worker::FinishReason::kLength:
      return "length";
    case worker::FinishReason::kContext:
      return "context";
  }
  return "unknown";
}

}  // namespace

EngineTarget::EngineTarget(const worker::EngineConfig& config, worker::Backend* backend, Clock* clock,
                           std::function<void(int64_t)> wait_until)
    : config_(config),
      clock_(clock),
      wait_until_(std::move(wait_until)),
      metrics_(&registry_),
      core_(config, backend, clock, &metrics_,
            [this](std::vector<worker::OutputItem> items) { Deliver(items); }),
      least_free_blocks_(config.num_blocks) {}

absl::StatusOr<std::vector<TargetResult>> EngineTarget::Run(absl::Span<const TargetRequest> requests,
                                                            const RunLimits& limits) {
  for (const TargetRequest& request : requests) {
    const absl::Status fits =
        worker::CheckFits(config_, static_cast<int64_t>(request.prompt_ids->size()), request.max_tokens);
    if (!fits.ok()) return InvalidField("--kv_cache_bytes", fits.message());
  }
  std::vector<TargetResult> results(requests.size());
  for (TargetResult& result : results) result.end = "unsent";
  results_ = &results;
  first_id_ = next_id_;
  ended_ = 0;
  begin_ns_ = clock_->NowNs();
  const auto due_ns = [&](size_t i) { return begin_ns_ + static_cast<int64_t>(requests[i].arrival_s * 1e9); };
  const auto has_room = [&](size_t sent) {
    return limits.most_in_flight == 0 || sent - ended_ < static_cast<size_t>(limits.most_in_flight);
  };
  size_t sent = 0;
  bool sending = true;
  while (ended_ < sent || (sending && sent < requests.size())) {
    while (sending && sent < requests.size() && has_room(sent) && due_ns(sent) <= clock_->NowNs()) {
      sending = limits.stop_above == 0 || sent - ended_ <= static_cast<size_t>(limits.stop_above);
      if (!sending) break;
      // Without a limit the request came at its time, though this thread was in a step.
      Add(requests[sent], limits.most_in_flight > 0 ? clock_->NowNs() : due_ns(sent), sent);
      ++sent;
    }
    const absl::StatusOr<bool> worked = core_.RunOnce();
    if (!worked.ok()) return worked.status();
    least_free_blocks_ = std::min(least_free_blocks_, core_.Load().free_blocks);
    if (*worked) continue;
    if (sending && sent < requests.size()) {
      wait_until_(due_ns(sent));
    } else if (ended_ < sent) {
      return absl::InternalError(
          absl::StrCat("the engine rests with ", sent - ended_, " requests unfinished"));
    }
  }
  results_ = nullptr;
  // The clock counts whole nanoseconds: nothing began before it came.
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].start_s >= 0 && limits.most_in_flight == 0)
      results[i].start_s = std::max(results[i].start_s, requests[i].arrival_s);
  }
  return results;
}

int64_t EngineTarget::TakePeakBlocks() {
  return config_.num_blocks - std::exchange(least_free_blocks_, core_.Load().free_blocks);
}

void EngineTarget::Add(const TargetRequest& request, int64_t due_ns, size_t index) {
  auto sequence = std::make_unique<worker::Sequence>();
  sequence->id = next_id_++;
  sequence->spec.prompt = *request.prompt_ids;
  sequence->spec.sampling.temperature = request.temperature;
  sequence->spec.sampling.seed = request.seed;
  sequence->spec.max_tokens = request.max_tokens;
  sequence->spec.arrival_ns = due_ns;
  sequence->output = std::make_shared<worker::OutputStream>();
  sequence->output->id = sequence->id;
  sequence->output->arrival_ns = due_ns;
  sequence->output->prompt_tokens = sequence->prompt_tokens();
  TargetResult& result = (*results_)[index];
  result.end.clear();
  result.sent_s = static_cast<double>(due_ns - begin_ns_) * 1e-9;
  result.token_s.reserve(request.max_tokens);
  result.ids.reserve(request.max_tokens);
  core_.Add(std::move(sequence));
}

void EngineTarget::Deliver(const std::vector<worker::OutputItem>& items) {
  const auto seconds = [this](int64_t ns) { return static_cast<double>(ns - begin_ns_) * 1e-9; };
  for (const worker::OutputItem& item : items) {
    TargetResult& result = (*results_)[item.stream->id - first_id_];
    if (item.has_token) {
      result.token_s.push_back(seconds(item.token.time_ns));
      result.ids.push_back(item.token.id);
    }
    if (item.has_end) {
      result.end = EndOf(item.outcome);
      result.error = std::string(item.outcome.status.message());
      if (item.outcome.admitted_ns > 0) result.start_s = seconds(item.outcome.admitted_ns);
      result.cached_tokens = item.outcome.cached_tokens;
      result.end_s = result.token_s.empty() ? seconds(clock_->NowNs()) : result.token_s.back();
      ++ended_;
    }
  }
}

}  // namespace ridge::bench
