// Command line on top of Abseil's flags. Call from main only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge {

// Dashes inside flag names become underscores: --kv-cache-bytes=1 and -kv-cache-bytes=1 are
// --kv_cache_bytes=1. Values, positional arguments and what follows a lone "--" stay as they are; an argument
// is a value where the flag before it takes one. A flag's file (--flagfile) is not rewritten.
std::vector<std::string> NormaliseFlagNames(const std::vector<std::string>& arguments);

// The flags that arguments give a value to, in their order, as they are registered: --no-graphs is "graphs".
// Unknown ones are among them, and those of a flag's file after its --flagfile. They end before a file that
// cannot be read, which ParseFlags reports.
std::vector<std::string> GivenFlags(const std::vector<std::string>& arguments);

// Whether a flag asks for help: --help or -h, or one of the flag library's own (--helpfull, --helpon), whose
// pages would show where the program was built.
bool IsHelp(absl::string_view name);

// `usage` and the help of these flags, as --help prints it.
std::string FlagHelp(absl::string_view usage, const std::vector<std::string>& names);

// Parses argv and returns the positional arguments (without the program's name). An unknown flag or a value
// that does not parse (a duration without its unit, say) or a file of flags that cannot be read ends the
// process with exit code 1 and a line that names the flag; --help prints `usage` and the flags of the program
// to stdout and ends it with 0.
std::vector<std::string> ParseFlags(absl::string_view usage, int argc, char** argv);

// "1073741824", "64KiB", "512MiB", "2GiB", "1TiB"; INVALID_ARGUMENT names the flag.
absl::StatusOr<int64_t> ParseBytes(absl::string_view flag_name, absl::string_view text);

}  // namespace ridge
