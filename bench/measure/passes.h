// Passes over a workload: its requests come over time, whatever the target does. Writes its records as it
// goes and skips what is there already.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/measure/subject.h"
#include "bench/measure/summary.h"

namespace ridge::bench {

// One pass over a workload, and how its requests come.
struct PassOptions {
  Workload workload;
  // Requests a second, from the first to the last request; 0: at the workload's own times.
  double rate = 0;
  double last_rate = 0;        // 0: as `rate`
  int32_t in_flight = 0;       // so many at once, each sent when another ends, at no times; 0: any number
  double burstiness = 1;       // of the gaps, see Arrivals
  uint64_t seed = 0;           // of the draw and of the arrivals
  int32_t stop_above = 0;      // see RunLimits
  double cancelled_share = 0;  // of the requests: their clients leave after a random number of tokens
};

// How a pass's requests come: "4/s", "4 to 8/s", "8 in flight", "at its own times".
std::string Offered(const PassOptions& options);

// Records the pass and says what came of it, on one line of progress. An open pass with late requests
// measured its client, and is made again up to twice; one that served nothing measured nothing: ABORTED, and
// nothing is recorded. A pass that is on record already is not made again, and refused where it was made with
// other settings (RecordFiles::CheckPass). Either way it is in the records afterwards.
absl::Status RunPass(const Subject& subject, const PassOptions& options);

// A pass at each rate, ascending. Ends, and says so, after the first one at which less than
// `least_served_share` of what came a second was served; 0: takes all.
absl::Status RunRates(const Subject& subject, PassOptions options, const std::vector<double>& rates,
                      double least_served_share);

// A pass at each number of requests in flight.
absl::Status RunConcurrencies(const Subject& subject, PassOptions options,
                              const std::vector<int32_t>& in_flight);

// Empty where at least `least_share` of what came a second was served; else what there is to say of it.
std::string MissedShare(double served_rate, double arrived_rate, double least_share);

}  // namespace ridge::bench
