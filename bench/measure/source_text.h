// The text whose beginnings are the prompts.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ridge::bench {

// The text at --source's value. A relative path is looked for here, and then above the program's own folder,
// so that the default is found wherever a built tree's program is started. Errors name the flag.
absl::StatusOr<std::string> ReadSource(const std::string& path);

}  // namespace ridge::bench
