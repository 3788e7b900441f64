// Closed runs: whole batches handed over at once, over all sizes, on one target. Writes its records as it
// goes and skips what is there already.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "bench/measure/subject.h"

namespace ridge::bench {

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
// program's they are refused (RecordFiles::CheckRuns).
absl::Status RunClosed(const Subject& subject, const ClosedOptions& options);

}  // namespace ridge::bench
