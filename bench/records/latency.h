// Latency statistics of one stream of tokens. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ridge::bench {

// The nearest-rank percentile: the smallest value that at least `percent` per cent of the values do not
// exceed. Requires a non-empty set and 0 < percent <= 100. Order does not matter.
double Percentile(std::vector<double> values, double percent);

struct StreamLatency {
  double ttft_ms = 0;            // from sending to the first token
  std::vector<double> itl_ms;    // gaps between consecutive tokens
  double tokens_per_second = 0;  // after the first token: (tokens - 1) / (last - first); 0 for fewer than two
};

// `token_ms` are the arrival times of the tokens, from sending. A token that shares its message with others
// has the time of that message.
StreamLatency Measure(absl::Span<const double> token_ms);

}  // namespace ridge::bench
