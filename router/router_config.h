// Configuration of ridge-router.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ridge::router {

struct RouterConfig {
  std::string listen = "127.0.0.1:50050";  // host:port of the gRPC port; port 0: any free one
  std::vector<std::string> workers;        // host:port each; at least one, no duplicates
  int metrics_port = 9100;                 // on the host of `listen`; 0: any free one, -1: none; up to 65,535
  int64_t max_message_bytes = int64_t{16} << 20;      // of one gRPC message; 4 KiB to 1 GiB
  std::string log_level = "info";                     // debug, info, warning, error
  absl::Duration drain_timeout = absl::Seconds(30);   // how long open streams may go on after SIGTERM; >= 0
  absl::Duration connect_timeout = absl::Seconds(5);  // of one attempt to reach a worker; > 0
  absl::Duration report_timeout = absl::Seconds(5);   // a worker that is silent for longer is down; >= 1 s
};

// From the command line, checked; an error names the flag.
absl::StatusOr<RouterConfig> RouterConfigFromFlags();

// The first value out of its range, by its flag.
absl::Status Validate(const RouterConfig& config);

// One line of name=value, for the log and /statusz.
std::string ToString(const RouterConfig& config);

}  // namespace ridge::router
