// The search for the highest rate at which a target keeps what it promises.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "bench/measure/passes.h"
#include "bench/measure/summary.h"

namespace ridge::bench {

// What a service promises its users.
struct GoodputLimits {
  double ttft_p99_s = 0.5;
  double itl_p99_s = 0.025;
  // Of the requests a second that came and stayed: a short trace is over before the queue that too high a
  // rate builds up is long.
  double least_served_share = 0.8;
};
// What a pass missed, with its figures, as "p99 ITL 31.20 > 25 ms"; empty where it met the limits.
std::string MissedLimits(const OpenSummary& summary, const GoodputLimits& limits);

// Requests a second: what was offered, and what of it was served within the pass. A short pass serves less
// than is offered, since its last requests' own time counts.
struct Goodput {
  double offered_rate = 0;
  double served_rate = 0;
};

// The highest rate that meets the limits with every request served: doubles from `first_rate` (or halves it,
// where that is too much), then halves the interval until it is within 5 %. 0 where a 32nd of the first rate
// does not meet them; no more than 1e6 is asked for. The progress says of each rate what it missed. Which
// rate comes next depends on the passes alone, so that a search that broke off goes on with those that are on
// record.
absl::StatusOr<Goodput> SearchGoodput(const Subject& subject, PassOptions options, double first_rate,
                                      const GoodputLimits& limits);

}  // namespace ridge::bench
