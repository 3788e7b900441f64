// The experiments of the ladder on one target: closed runs over all sizes, and passes over a workload at
// several rates. Each writes its records as it goes and skips what is there already.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/measure/summary.h"
#include "bench/measure/target.h"
#include "bench/records/record_files.h"
#include "bench/workload/prompts.h"
#include "bench/workload/workload.h"

namespace ridge::bench {

// What an experiment runs on.
struct Subject {
  Target* target;
  Prompts* prompts;
  RecordFiles* records;
  int32_t max_batch;                     // sequences that the target runs at once; 0: not known
  std::function<int64_t()> peak_memory;  // bytes; 0: not known
  std::string peak_memory_source;
  std::function<std::string()> work;  // what was done since the last call, for the notes; may be empty
  std::ostream* progress;
  bool on_terminal = false;  // `progress` is one: a pass under way is named, and how long what is left takes
};

struct ClosedOptions {
  std::vector<Workload> workloads;  // each one handed over at once
  int warmups = 2;                  // run first, recorded with negative indices
  int runs = 5;
  // Of each workload: where its recorded runs took this together, the first warm-up and run are its last; a
  // quarter of it ends the warm-ups. 0: all are run.
  double most_seconds = 0;
  // Larger workloads have no warm-ups: those before them were enough. 0: all have.
  int32_t largest_warmed = 0;
};
// Runs of a workload that are on record are kept, and so named in the progress; with other settings than this
// program's they are refused (RecordFiles::CheckRuns), as passes are.
absl::Status RunClosed(const Subject& subject, const ClosedOptions& options);

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

// Records the pass and says what came of it, on one line of progress. An open pass with late requests
// measured its client, and is made again up to twice; one that served nothing measured nothing: ABORTED, and
// nothing is recorded. Where the pass is on record already, nothing is run: nullopt.
absl::StatusOr<std::optional<OpenSummary>> RunPass(const Subject& subject, const PassOptions& options);

// A pass at each rate, ascending. Ends, and says so, after the first one at which less than
// `least_served_share` of what came a second was served; 0: takes all.
absl::Status RunRates(const Subject& subject, PassOptions options, const std::vector<double>& rates,
                      double least_served_share);

// A pass at each number of requests in flight.
absl::Status RunConcurrencies(const Subject& subject, PassOptions options,
                              const std::vector<int32_t>& in_flight);

// What a service promises its users.
struct GoodputLimits {
  double ttft_p99_s = 0.5;
  double itl_p99_s = 0.025;
  // Of the requests a second that came: a short trace is over before the queue that too high a rate builds up
  // is long.
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
// does not meet them. The progress says of each rate what it missed. A search needs a folder without its
// records.
absl::StatusOr<Goodput> SearchGoodput(const Subject& subject, PassOptions options, double first_rate,
                                      const GoodputLimits& limits);

// The requests of a workload, with their prompts.
absl::StatusOr<std::vector<TargetRequest>> ToRequests(const Workload& workload, Prompts* prompts);

}  // namespace ridge::bench
