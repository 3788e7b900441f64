// What a run's times say. Pure; the definitions are those of the series (docs of each field).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/measure/target.h"
#include "nlohmann/json_fwd.hpp"

namespace ridge::bench {

// Nearest-rank percentiles; all 0 where there is nothing.
struct Spread {
  double p50 = 0, p95 = 0, p99 = 0, worst = 0;
};
Spread SpreadOf(std::vector<double> values);

// Requests that ended in the same way without being served.
struct Failure {
  std::string end;  // as in TargetResult: the name of an error's code, or "unsent"
  int32_t count = 0;
  std::string error;  // what the first of them said
};

struct OpenSummary {
  int32_t served = 0;
  int32_t cancelled = 0;              // their clients left, as they were told to
  int32_t unserved = 0;               // ended otherwise, or were never sent: `failures` says how
  std::vector<Failure> failures;      // the most frequent first
  int32_t late = 0;                   // sent later than scheduled by more than kLateSeconds
  double served_rate = 0;             // served requests / (first arrival to the last one's end)
  double arrival_rate = 0;            // requests a second that came, see ArrivalRate
  double tokens_per_second = 0;       // generated tokens over the same time as served_rate
  int32_t shared_message_tokens = 0;  // that came in one message with the token before: a gap of 0
  Spread queue_s;                     // from the scheduled arrival to the first step that worked on it
  Spread ttft_s;                      // from the scheduled arrival to the first token
  Spread itl_s;                       // gaps between consecutive tokens, over all requests
  // Gaps between the tokens of running requests in which another request's prompt was worked on.
  Spread disturbance_s;
  int32_t disturbed_over_150_ms = 0;
};

// `requests` and `results` belong together, in the order of arrival.
OpenSummary Summarise(absl::Span<const TargetRequest> requests, absl::Span<const TargetResult> results);

// Requests a second that came and whose clients stayed: what there was to serve.
double StayedRate(const OpenSummary& summary);

// "398 UNAVAILABLE (first: connection refused), 2 unsent"; empty where none failed.
std::string FailureText(const OpenSummary& summary);

// By name, as passes.jsonl has it.
nlohmann::ordered_json ToJson(const OpenSummary& summary);
// All but the failures. INVALID_ARGUMENT names a field that is missing or no number: older versions had
// fewer.
absl::StatusOr<OpenSummary> FromJson(const nlohmann::ordered_json& figures);

}  // namespace ridge::bench
