// Which flags each subcommand of ridge-bench takes: a flag of another one would be ignored, and is refused.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ridge::bench {

// Their names, in the order in which help shows them; empty where there is no such command.
std::vector<std::string> FlagsOf(absl::string_view command);

// INVALID_ARGUMENT "--flag: ..." where one of the flags that were given is not of the command, or needs
// another one that was not given, or does not go with one that was.
absl::Status CheckCommandFlags(absl::string_view command, const std::vector<std::string>& given);

// INVALID_ARGUMENT "--flag: ..." where one of the command's flags was given an empty value that says nothing
// (a shell's unset variable, say, which would silently be the default) or one that is no text, or where a
// flag changes nothing beside the value of another. After the flags were parsed.
absl::Status CheckFlagValues(absl::string_view command, const std::vector<std::string>& given);

}  // namespace ridge::bench
