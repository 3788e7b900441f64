// What is measured: something that takes requests over time and says when each of their tokens was there. The
// instrument is the same whatever stands behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ridge::bench {

struct TargetRequest {
  std::shared_ptr<const std::vector<int32_t>> prompt_ids;
  int32_t max_tokens = 1;
  double arrival_s = 0;  // from the start of the run, ascending
  float temperature = 0;
  uint64_t seed = 0;
  int32_t cancel_after_tokens = 0;  // the client leaves after this many; 0: it stays
};

// Times in seconds from the start of the run.
struct TargetResult {
  double sent_s = -1;   // negative: never sent
  double start_s = -1;  // first step that worked on it; negative: not known
  double end_s = 0;
  std::vector<double> token_s;
  std::vector<int32_t> ids;
  std::string text;
  int32_t cached_tokens = 0;          // of the prompt, from a prefix cache
  int32_t shared_message_tokens = 0;  // came in one message with the token before
  std::string end;    // "length", "stop", "context", "cancelled", "unsent", or the name of an error's code
  std::string error;  // what an error said

  bool served() const { return end == "length" || end == "stop" || end == "context"; }
};

struct RunLimits {
  int32_t most_in_flight = 0;  // further requests wait for one to end; 0: none waits
  int32_t stop_above = 0;  // more unanswered requests than this end the sending: it cannot keep up; 0: never
};

class Target {
 public:
  virtual ~Target() = default;

  // Sends each request at its time and returns when all have ended, one result each. An error is one of the
  // run itself.
  virtual absl::StatusOr<std::vector<TargetResult>> Run(absl::Span<const TargetRequest> requests,
                                                        const RunLimits& limits) = 0;
};

// Sending later than scheduled by more than this makes a request late: an open run with late ones measured
// its client.
inline constexpr double kLateSeconds = 0.005;

}  // namespace ridge::bench
