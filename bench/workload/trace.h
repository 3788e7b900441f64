// Recorded traffic of other services as workloads. Pure; errors name origin, line and field.
//
// What the files say of a request is when it came, how long its prompt and its answer were and, in
// Mooncake's, which blocks its prompt shares with others. Requests without a prompt or an answer (BurstGPT
// writes 0 for those that failed) are left out and counted. Lines need not be in the order of time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/workload/workload.h"

namespace ridge::bench {

struct TraceOptions {
  double time_scale = 1;      // gaps are multiplied by it, > 0
  int32_t most_requests = 0;  // the first ones in time; 0: all
  int32_t most_tokens =
      1 << 20;  // of prompt and answer together; requests with more are left out and counted
};

struct Trace {
  Workload workload;
  int64_t failed = 0;    // left out: no prompt or no answer
  int64_t too_long = 0;  // left out: more than most_tokens
};

// JSON lines with timestamp (ms), input_length, output_length and, where prompts share blocks of 512 tokens,
// hash_ids.
absl::StatusOr<Trace> FromMooncake(absl::string_view text, const std::string& origin,
                                   const TraceOptions& options);

// CSV with a header line that names at least Timestamp (s), Request tokens and Response tokens, in any order.
absl::StatusOr<Trace> FromBurstGpt(absl::string_view text, const std::string& origin,
                                   const TraceOptions& options);

}  // namespace ridge::bench
