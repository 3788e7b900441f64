#include "router/router_config.h"

#include <set>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/address.h"
#include "common/flags.h"
#include "common/status.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:50050", "host:port of the gRPC port; port 0 takes any free one");
ABSL_FLAG(std::vector<std::string>, workers, {}, "workers, as host:port[,host:port...]; required");
ABSL_FLAG(int, metrics_port, 9100,
          "port of /metrics, /healthz, /readyz, /statusz; 0: any free one, -1: none");
ABSL_FLAG(std::string, max_message_bytes, "16MiB", "largest gRPC message");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30), "how long open streams may go on after SIGTERM");
ABSL_FLAG(absl::Duration, connect_timeout, absl::Seconds(5), "limit of one attempt to connect to a worker");
ABSL_FLAG(absl::Duration, report_timeout, absl::Seconds(5), "a worker that is silent for longer is down");

namespace ridge::router {
namespace {

constexpr int kMaxPort = 65535;
constexpr int64_t kMinMessageBytes = int64_t{4} << 10;
constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;

absl::Status CheckWorkers(const std::vector<std::string>& workers) {
  if (workers.empty()) return InvalidField("--workers", "at least one host:port is required");
  std::set<absl::string_view> seen;
  for (const std::string& worker : workers) {
    const absl::StatusOr<HostPort> address = ParseHostPort("--workers", worker, 1);
    if (!address.ok()) return address.status();
    if (!seen.insert(worker).second) {
      return InvalidField("--workers", absl::StrCat("\"", worker, "\" is named twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const RouterConfig& config) {
  const absl::StatusOr<HostPort> listen = ParseHostPort("--listen", config.listen, 0);
  if (!listen.ok()) return listen.status();
  if (absl::Status status = CheckWorkers(config.workers); !status.ok()) return status;
  if (config.metrics_port < -1 || config.metrics_port > kMaxPort) {
    return InvalidField("--metrics_port", absl::StrCat(config.metrics_port, " is not in -1 to ", kMaxPort));
  }
  if (config.max_message_bytes < kMinMessageBytes || config.max_message_bytes > kMaxMessageBytes) {
    return InvalidField("--max_message_bytes",
                        absl::StrCat(config.max_message_bytes, " is not in 4KiB to 1GiB"));
  }
  const std::set<absl::string_view> levels = {"debug", "info", "warning", "error"};
  if (levels.count(config.log_level) == 0) {
    return InvalidField("--log_level", absl::StrCat("\"", config.log_level, "\" is not one of ",
                                                    absl::StrJoin(levels, ", ")));
  }
  if (config.drain_timeout < absl::ZeroDuration()) {
    return InvalidField("--drain_timeout", "must not be negative");
  }
  if (config.connect_timeout < absl::Milliseconds(1)) {
    return InvalidField("--connect_timeout", "must be at least 1ms");
  }
  // Workers report once a second even when nothing changes.
  if (config.report_timeout < absl::Seconds(1)) {
    return InvalidField("--report_timeout", "must be at least 1s");
  }
  return absl::OkStatus();
}

absl::StatusOr<RouterConfig> RouterConfigFromFlags() {
  RouterConfig config;
  config.listen = absl::GetFlag(FLAGS_listen);
  config.workers = absl::GetFlag(FLAGS_workers);
  config.metrics_port = absl::GetFlag(FLAGS_metrics_port);
  config.log_level = absl::GetFlag(FLAGS_log_level);
  config.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  config.connect_timeout = absl::GetFlag(FLAGS_connect_timeout);
  config.report_timeout = absl::GetFlag(FLAGS_report_timeout);
  absl::StatusOr<int64_t> bytes = ParseBytes("max_message_bytes", absl::GetFlag(FLAGS_max_message_bytes));
  if (!bytes.ok()) return bytes.status();
  config.max_message_bytes = *bytes;
  if (absl::Status status = Validate(config); !status.ok()) return status;
  return config;
}

std::string ToString(const RouterConfig& config) {
  return absl::StrCat("listen=", config.listen, " workers=", absl::StrJoin(config.workers, ","),
                      " metrics_port=", config.metrics_port, " max_message_bytes=", config.max_message_bytes,
                      " log_level=", config.log_level,
                      " drain_timeout=", absl::FormatDuration(config.drain_timeout),
                      " connect_timeout=", absl::FormatDuration(config.connect_timeout),
                      " report_timeout=", absl::FormatDuration(config.report_timeout));
}

}  // namespace ridge::router
