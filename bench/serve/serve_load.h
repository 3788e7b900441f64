// ridge-bench serve-load: load on a running service, as its users put it there.
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "bench/measure/pass_flags.h"

namespace ridge::bench {

struct ServeLoadConfig {
  std::string target;  // host:port
  std::string model;   // by its name; empty: whatever is served
  int connections = 4;
  absl::Duration request_timeout = absl::Minutes(10);
  std::string source_file;    // text that prompts are cut from
  std::string out;            // a folder in it, called as the engine, holds the records; required
  std::string engine;         // what the records call it
  std::string expect_device;  // see CheckDevice
  std::string through;        // what answers at `target`, for the records; empty: it is asked
  std::string commit;
  bool on_terminal = false;  // what progress goes to
};

// Errors name the flag.
absl::StatusOr<ServeLoadConfig> ServeLoadConfigFromFlags();

absl::Status ServeLoad(const ServeLoadConfig& config, const PassFlags& flags, std::ostream& progress);

}  // namespace ridge::bench
