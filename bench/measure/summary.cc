#include "bench/measure/summary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/records/arrival_record.h"
#include "bench/records/latency.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

constexpr double kDisturbedSeconds = 0.150;

struct Interval {
  double begin, end;
};

// When the prompts of requests were worked on, overlapping intervals merged, ascending.
std::vector<Interval> PrefillTimes(absl::Span<const TargetResult> results) {
  std::vector<Interval> all;
  for (const TargetResult& result : results) {
    if (result.start_s >= 0 && !result.token_s.empty())
      all.push_back({result.start_s, result.token_s.front()});
  }
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> merged;
  for (const Interval& interval : all) {
    if (!merged.empty() && interval.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, interval.end);
    } else {
      merged.push_back(interval);
    }
  }
  return merged;
}

// Whether the open interval (begin, end) meets one of them. A request's own prefill ends where its first gap
// begins.
bool Meets(const std::vector<Interval>& intervals, double begin, double end) {
  const auto after =
      std::upper_bound(intervals.begin(), intervals.end(), begin,
                       [](double value, const Interval& interval) { return value < interval.end; });
  return after != intervals.end() && after->begin < end;
}

void CountFailure(const TargetResult& result, std::vector<Failure>& failures) {
  const auto found = std::find_if(failures.begin(), failures.end(),
                                  [&](const Failure& failure) { return failure.end == result.end; });
  if (found == failures.end()) {
    failures.push_back({result.end, 1, result.error});
  } else {
    ++found->count;
  }
}

// Reads fields of an object one after the other; the first that is not there is kept.
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::ordered_json& object) : object_(object) {}

  template <typename Number>
  void Read(const char* name, Number& value) {
    if (object_.is_object() && object_.contains(name) && object_[name].is_number()) {
      value = object_[name].get<Number>();
    } else {
      Fail(name);
    }
  }
  void Read(const char* name, Spread& spread) {
    FieldReader fields(object_.is_object() ? object_.value(name, nlohmann::ordered_json()) : nullptr);
    fields.Read("p50", spread.p50);
    fields.Read("p95", spread.p95);
    fields.Read("p99", spread.p99);
    fields.Read("worst", spread.worst);
    if (!fields.status_.ok()) Fail(name);
  }
  const absl::Status& status() const { return status_; }

 private:
  void Fail(const char* name) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(name, ": missing, or not as it is written")));
  }

  const nlohmann::ordered_json object_;
  absl::Status status_;
};

nlohmann::ordered_json SpreadJson(const Spread& spread) {
  return {{"p50", spread.p50}, {"p95", spread.p95}, {"p99", spread.p99}, {"worst", spread.worst}};
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  return {Percentile(values, 50), Percentile(values, 95), Percentile(values, 99),
          *std::max_element(values.begin(), values.end())};
}

OpenSummary Summarise(absl::Span<const TargetRequest> requests, absl::Span<const TargetResult> results) {
  OpenSummary summary;
  const std::vector<Interval> prefills = PrefillTimes(results);
  std::vector<double> queue, ttft, gaps, disturbed;
  double last_end_s = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const TargetResult& result = results[i];
    const double arrival_s = requests[i].arrival_s;
    summary.late += result.sent_s > arrival_s + kLateSeconds;
    if (!result.served()) {
      ++(result.end == "cancelled" ? summary.cancelled : summary.unserved);
      if (result.end != "cancelled") CountFailure(result, summary.failures);
      continue;
    }
    ++summary.served;
    tokens += static_cast<int64_t>(result.ids.size());
    summary.shared_message_tokens += result.shared_message_tokens;
    last_end_s = std::max(last_end_s, result.end_s);
    if (result.start_s >= 0) queue.push_back(result.start_s - arrival_s);
    if (!result.token_s.empty()) ttft.push_back(result.token_s.front() - arrival_s);
    for (size_t token = 1; token < result.token_s.size(); ++token) {
      const double begin = result.token_s[token - 1], end = result.token_s[token];
      gaps.push_back(end - begin);
      if (Meets(prefills, begin, end)) disturbed.push_back(end - begin);
    }
  }
  std::stable_sort(summary.failures.begin(), summary.failures.end(),
                   [](const Failure& a, const Failure& b) { return a.count > b.count; });
  const double span_s = requests.empty() ? 0 : last_end_s - requests.front().arrival_s;
  if (!requests.empty()) {
    summary.arrival_rate = ArrivalRate(static_cast<int32_t>(requests.size()), requests.front().arrival_s,
                                       requests.back().arrival_s);
  }
  if (span_s > 0) {
    summary.served_rate = summary.served / span_s;
    summary.tokens_per_second = static_cast<double>(tokens) / span_s;
  }
  summary.disturbed_over_150_ms = static_cast<int32_t>(
      std::count_if(disturbed.begin(), disturbed.end(), [](double gap) { return gap > kDisturbedSeconds; }));
  summary.queue_s = SpreadOf(std::move(queue));
  summary.ttft_s = SpreadOf(std::move(ttft));
  summary.itl_s = SpreadOf(std::move(gaps));
  summary.disturbance_s = SpreadOf(std::move(disturbed));
  return summary;
}

double StayedRate(const OpenSummary& summary) {
  const int32_t requests = summary.served + summary.cancelled + summary.unserved;
  return requests == 0 ? 0 : summary.arrival_rate * (requests - summary.cancelled) / requests;
}

std::string FailureText(const OpenSummary& summary) {
  std::string text;
  for (const Failure& failure : summary.failures) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", failure.count, " ", failure.end,
                    failure.error.empty() ? "" : absl::StrCat(" (first: ", failure.error, ")"));
  }
  return text;
}

nlohmann::ordered_json ToJson(const OpenSummary& summary) {
  nlohmann::ordered_json failures = nlohmann::ordered_json::array();
  for (const Failure& failure : summary.failures) {
    failures.push_back({{"end", failure.end}, {"count", failure.count}, {"first_error", failure.error}});
  }
  return {{"served", summary.served},
          {"cancelled", summary.cancelled},
          {"unserved", summary.unserved},
          {"failures", std::move(failures)},
          {"late", summary.late},
          {"served_per_s", summary.served_rate},
          {"arrived_per_s", summary.arrival_rate},
          {"tokens_per_s", summary.tokens_per_second},
          {"shared_message_tokens", summary.shared_message_tokens},
          {"queue_s", SpreadJson(summary.queue_s)},
          {"ttft_s", SpreadJson(summary.ttft_s)},
          {"itl_s", SpreadJson(summary.itl_s)},
          {"disturbance_s", SpreadJson(summary.disturbance_s)},
          {"disturbed_over_150_ms", summary.disturbed_over_150_ms}};
}

absl::StatusOr<OpenSummary> FromJson(const nlohmann::ordered_json& figures) {
  OpenSummary summary;
  FieldReader fields(figures);
  fields.Read("served", summary.served);
  fields.Read("cancelled", summary.cancelled);
  fields.Read("unserved", summary.unserved);
  fields.Read("late", summary.late);
  fields.Read("served_per_s", summary.served_rate);
  fields.Read("arrived_per_s", summary.arrival_rate);
  fields.Read("tokens_per_s", summary.tokens_per_second);
  fields.Read("shared_message_tokens", summary.shared_message_tokens);
  fields.Read("queue_s", summary.queue_s);
  fields.Read("ttft_s", summary.ttft_s);
  fields.Read("itl_s", summary.itl_s);
  fields.Read("disturbance_s", summary.disturbance_s);
  fields.Read("disturbed_over_150_ms", summary.disturbed_over_150_ms);
  if (!fields.status().ok()) return fields.status();
  return summary;
}

}  // namespace ridge::bench
