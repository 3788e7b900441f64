#include "common/flags.h"

#include <algorithm>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace ridge {

std::vector<std::string> NormaliseFlagNames(const std::vector<std::string>& arguments) {
  std::vector<std::string> normalised;
  bool flags_ended = false;
  for (const std::string& argument : arguments) {
    std::string result = argument;
    flags_ended = flags_ended || argument == "--";
    if (!flags_ended && absl::StartsWith(argument, "--")) {
      const auto name_end = std::find(result.begin(), result.end(), '=');
      std::replace(result.begin() + 2, name_end, '-', '_');
      // Abseil spells a negated flag --noname.
      if (absl::StartsWith(result, "--no_")) result.erase(4, 1);
    }
    normalised.push_back(std::move(result));
  }
  return normalised;
}

std::vector<std::string> ParseFlags(absl::string_view usage, int argc, char** argv) {
  absl::SetProgramUsageMessage(usage);
  absl::FlagsUsageConfig config;
  // --help shows our flags, not those of the libraries.
  config.contains_help_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "_config.cc") || absl::EndsWith(file, "_flags.cc");
  };
  config.version_string = [] { return std::string("ridge " RIDGE_VERSION "\n"); };
  absl::SetFlagsUsageConfig(config);

  std::vector<std::string> normalised = NormaliseFlagNames(std::vector<std::string>(argv, argv + argc));
  std::vector<char*> pointers;
  for (std::string& argument : normalised) pointers.push_back(argument.data());
  const std::vector<char*> rest = absl::ParseCommandLine(argc, pointers.data());
  return std::vector<std::string>(rest.begin() + 1, rest.end());
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view flag_name, absl::string_view text) {
  struct Suffix {
    absl::string_view name;
    int64_t factor;
  };
  constexpr Suffix kSuffixes[] = {
      {"KiB", int64_t{1} << 10}, {"MiB", int64_t{1} << 20}, {"GiB", int64_t{1} << 30}};
  absl::string_view number = absl::StripAsciiWhitespace(text);
  int64_t factor = 1;
  for (const Suffix& suffix : kSuffixes) {
    if (absl::EndsWith(number, suffix.name)) {
      number = absl::StripAsciiWhitespace(number.substr(0, number.size() - suffix.name.size()));
      factor = suffix.factor;
      break;
    }
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(number, &value) || value < 0 || value > INT64_MAX / factor) {
    return InvalidField(absl::StrCat("--", flag_name),
                        absl::StrCat("\"", text, "\" is not a size such as 1073741824, 512MiB or 2GiB"));
  }
  return value * factor;
}

}  // namespace ridge
