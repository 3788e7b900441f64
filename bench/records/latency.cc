#include "bench/records/latency.h"

#include <algorithm>
#include <cmath>

namespace ridge::bench {

double Percentile(std::vector<double> values, double percent) {
  const auto rank = static_cast<size_t>(std::ceil(percent / 100.0 * static_cast<double>(values.size())));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

StreamLatency Measure(absl::Span<const double> token_ms) {
  StreamLatency latency;
  if (token_ms.empty()) return latency;
  latency.ttft_ms = token_ms.front();
  for (size_t i = 1; i < token_ms.size(); ++i) latency.itl_ms.push_back(token_ms[i] - token_ms[i - 1]);
  const double decode_ms = token_ms.back() - token_ms.front();
  if (decode_ms > 0)
    latency.tokens_per_second = static_cast<double>(token_ms.size() - 1) / decode_ms * 1000.0;
  return latency;
}

}  // namespace ridge::bench
