#include "common/logging.h"

#include "grpc/support/log.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace ridge {

bool InitLogging(absl::string_view program, absl::string_view level) {
  spdlog::level::level_enum parsed;
  if (level == "debug") {
    parsed = spdlog::level::debug;
  } else if (level == "info") {
    parsed = spdlog::level::info;
  } else if (level == "warning") {
    parsed = spdlog::level::warn;
  } else if (level == "error") {
    parsed = spdlog::level::err;
  } else {
    return false;
  }
  auto logger = spdlog::stderr_logger_mt(std::string(program));
  logger->set_level(parsed);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n: %v", spdlog::pattern_time_type::utc);
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  // What matters to an operator comes back as a status and is logged by us, once and in one line.
  gpr_set_log_function([](gpr_log_func_args* line) { LogDebug("grpc: {}", line->message); });
  return true;
}

}  // namespace ridge
