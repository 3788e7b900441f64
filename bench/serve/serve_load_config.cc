#include "absl/algorithm/container.h"
#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/flags/shared_flags.h"
#include "bench/serve/serve_load.h"
#include "common/status.h"

ABSL_FLAG(int, connections, 4, "serve-load: connections that the streams are spread over");
ABSL_FLAG(absl::Duration, request_timeout, absl::Minutes(10), "serve-load: limit of each request");
ABSL_FLAG(std::string, called, "service", "serve-load: what the records call the engine");
ABSL_FLAG(std::string, through, "",
          "serve-load: what answers at --target, in words for the records; default: \"a worker\" where it is "
          "one, else \"a service\"");

namespace ridge::bench {
namespace {

// It is a folder in --out.
absl::Status CheckName(const std::string& name) {
  const bool is_plain = !name.empty() && name[0] != '.' && absl::c_all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._-+", c);
  });
  if (is_plain) return absl::OkStatus();
  return InvalidField("--called", absl::StrCat("\"", name,
                                               "\" is no plain name: letters, digits, . _ - and +, "
                                               "and no dot in front"));
}

}  // namespace

absl::StatusOr<ServeLoadConfig> ServeLoadConfigFromFlags() {
  ServeLoadConfig config;
  config.target = absl::GetFlag(FLAGS_target);
  config.model = absl::GetFlag(FLAGS_model);
  config.connections = absl::GetFlag(FLAGS_connections);
  config.request_timeout = absl::GetFlag(FLAGS_request_timeout);
  config.source_file = absl::GetFlag(FLAGS_source);
  config.out = absl::GetFlag(FLAGS_out);
  config.engine = absl::GetFlag(FLAGS_called);
  config.expect_device = absl::GetFlag(FLAGS_expect_device);
  config.through = absl::GetFlag(FLAGS_through);
  config.commit = absl::GetFlag(FLAGS_commit);
  absl::Status status = CheckAtLeast("--connections", config.connections, 1);
  if (config.request_timeout <= absl::ZeroDuration())
    status.Update(InvalidField("--request_timeout", "must be more than 0"));
  status.Update(CheckName(config.engine));
  if (config.out.empty()) status.Update(InvalidField("--out", "required"));
  if (!status.ok()) return status;
  return config;
}

}  // namespace ridge::bench
