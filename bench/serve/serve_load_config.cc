#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "bench/flags/shared_flags.h"
#include "bench/serve/serve_load.h"
#include "common/status.h"

ABSL_FLAG(int, connections, 4, "serve-load: connections that the streams are spread over");
ABSL_FLAG(absl::Duration, request_timeout, absl::Minutes(10), "serve-load: limit of each request");
ABSL_FLAG(std::string, called, "service", "serve-load: what the records call the engine");
ABSL_FLAG(bool, goodput, false,
          "serve-load: search the highest rate that meets the limits, instead of passes");
ABSL_FLAG(double, first_rate, 1, "serve-load: where the search begins, requests a second");
ABSL_FLAG(absl::Duration, ttft_limit, absl::Milliseconds(500),
          "serve-load: p99 of the time to the first token");
ABSL_FLAG(absl::Duration, itl_limit, absl::Milliseconds(25), "serve-load: p99 of the gaps between tokens");

namespace ridge::bench {

absl::StatusOr<ServeLoadConfig> ServeLoadConfigFromFlags() {
  ServeLoadConfig config;
  config.target = absl::GetFlag(FLAGS_target);
  config.connections = absl::GetFlag(FLAGS_connections);
  config.request_timeout = absl::GetFlag(FLAGS_request_timeout);
  config.source_file = absl::GetFlag(FLAGS_source);
  config.out = absl::GetFlag(FLAGS_out);
  config.engine = absl::GetFlag(FLAGS_called);
  config.commit = absl::GetFlag(FLAGS_commit);
  config.search_goodput = absl::GetFlag(FLAGS_goodput);
  config.first_rate = absl::GetFlag(FLAGS_first_rate);
  config.limits = {absl::ToDoubleSeconds(absl::GetFlag(FLAGS_ttft_limit)),
                   absl::ToDoubleSeconds(absl::GetFlag(FLAGS_itl_limit))};
  absl::Status status = CheckAtLeast("--connections", config.connections, 1);
  if (!(config.first_rate > 0)) status.Update(InvalidField("--first_rate", "must be more than 0"));
  if (config.request_timeout <= absl::ZeroDuration())
    status.Update(InvalidField("--request_timeout", "must be more than 0"));
  if (config.out.empty()) status.Update(InvalidField("--out", "required"));
  if (!status.ok()) return status;
  return config;
}

}  // namespace ridge::bench
