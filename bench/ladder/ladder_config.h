// Flags of the experiments that run an engine in this process: closed and arrivals.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/ladder/engine_host.h"
#include "bench/measure/closed_runs.h"
#include "bench/measure/passes.h"

namespace ridge::bench {

struct LadderConfig {
  HostConfig host;
  std::vector<std::string> engines;  // presets
  worker::PolicyNames choices;       // replace those of every preset
  std::string out;                   // a folder in it holds each engine's records
  std::string source_file;           // text that prompts are cut from
  std::string expect_device;         // see CheckDevice
  std::string commit;                // recorded
  bool on_terminal = false;          // what progress goes to
};

// Errors name the flag.
absl::StatusOr<LadderConfig> LadderConfigFromFlags();

struct ClosedFlags {
  std::vector<Workload> workloads;
  int warmups, runs;
  double most_seconds = 0;
  int32_t largest_warmed = 0;
};
absl::StatusOr<ClosedFlags> ClosedFlagsFromFlags();

}  // namespace ridge::bench
