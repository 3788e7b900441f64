// ridge-bench ask: one request; the answer streams to stdout, a line of figures follows on stderr.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ridge/v1/inference.grpc.pb.h"

namespace ridge::bench {

struct AskConfig {
  std::string target = "127.0.0.1:50050";      // host:port of a router or a worker
  absl::Duration timeout = absl::Seconds(60);  // of the whole request; > 0
  v1::GenerateRequest request;
};

// From the flags; an error names the flag.
absl::StatusOr<AskConfig> AskConfigFromFlags();

// Streams the answer's text (token ids where the model has no text) to `text` and writes the figures to
// `figures`.
absl::Status Ask(const AskConfig& config, std::ostream& text, std::ostream& figures);

}  // namespace ridge::bench
