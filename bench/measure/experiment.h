// The experiments of the ladder on one target: closed runs over all sizes, and open passes over a trace at
// several rates. Each writes its records as it goes and skips what is there already.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
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
  std::ostream* progress;
};

struct ClosedOptions {
  std::vector<Workload> workloads;  // each one handed over at once
  int warmups = 2;                  // run first, recorded with negative indices
  int runs = 5;
};
absl::Status RunClosed(const Subject& subject, const ClosedOptions& options);

struct OpenOptions {
  Workload workload;          // its arrivals are set anew for each rate
  std::vector<double> rates;  // requests a second, ascending
  double burstiness = 1;
  uint64_t seed = 0;
  // Ends the sweep after the first rate at which less than this share of the offered rate is served; 0: all
  // rates.
  double least_served_share = 0;
  int32_t stop_above = 0;  // see RunLimits
};
absl::Status RunOpen(const Subject& subject, const OpenOptions& options);

// The requests of a workload, with their prompts.
absl::StatusOr<std::vector<TargetRequest>> ToRequests(const Workload& workload, Prompts* prompts);

}  // namespace ridge::bench
