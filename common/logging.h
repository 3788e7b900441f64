// Log lines on stderr: UTC time, level, program, text. Control characters in the text are escaped, so that a
// line stays a line whatever a client puts into it.
//
// Thread-safe after InitLogging; before it, lines go out in spdlog's default format.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "spdlog/spdlog.h"

namespace ridge {

// Once, at the top of main; gRPC's and protobuf's own lines become debug lines. `level` is one of debug,
// info, warning, error; false for another one.
bool InitLogging(absl::string_view program, absl::string_view level);

template <typename... Args>
void LogDebug(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}

template <typename... Args>
void LogInfo(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}

template <typename... Args>
void LogWarning(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}

template <typename... Args>
void LogError(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

}  // namespace ridge
