// What an experiment of the ladder runs on, whichever one it is.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/measure/target.h"
#include "bench/records/record_files.h"
#include "bench/workload/prompts.h"
#include "bench/workload/workload.h"

namespace ridge::bench {

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

// The requests of a workload, with their prompts.
absl::StatusOr<std::vector<TargetRequest>> ToRequests(const Workload& workload, Prompts* prompts);

// Eight random hex digits, to tell one run's records from another's.
std::string ShortId();

}  // namespace ridge::bench
