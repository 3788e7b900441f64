#include "common/flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/read_file.h"
#include "common/status.h"

namespace ridge {

namespace {

// Of libraries there are flags too, which are not for users.
bool IsOurs(absl::string_view file) {
  return absl::EndsWith(file, "_config.cc") || absl::EndsWith(file, "_flags.cc");
}

// Whether the argument after this flag is its value. `name` may be unknown.
bool TakesNext(absl::string_view name) {
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  return flag != nullptr && !flag->IsOfType<bool>();
}

void PrintHelp(absl::string_view usage) {
  std::vector<std::string> names;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOurs(flag->Filename())) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  const std::string text = FlagHelp(usage, names);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

struct Argument {
  std::string text;  // the name of a flag normalised
  bool is_flag = false;
};

// Abseil spells a negated flag --noname.
Argument NormaliseFlag(std::string text, size_t dashes, bool* takes_next) {
  const size_t name_end = std::min(text.find('='), text.size());
  std::replace(text.begin() + static_cast<std::ptrdiff_t>(dashes),
               text.begin() + static_cast<std::ptrdiff_t>(name_end), '-', '_');
  *takes_next = name_end == text.size() && TakesNext(absl::string_view(text).substr(dashes));
  if (absl::StartsWith(absl::string_view(text).substr(dashes), "no_")) text.erase(dashes + 2, 1);
  return {std::move(text), true};
}

std::vector<Argument> Normalise(const std::vector<std::string>& arguments) {
  std::vector<Argument> normalised;
  bool flags_ended = false;
  bool is_value = false;
  for (const std::string& argument : arguments) {
    const bool is_program = normalised.empty();
    if (flags_ended || is_program || std::exchange(is_value, false)) {
      normalised.push_back({argument});
      continue;
    }
    flags_ended = argument == "--";
    const size_t dashes = absl::StartsWith(argument, "--") ? 2 : 1;
    if (!flags_ended && absl::StartsWith(argument, "-") && argument.size() > dashes) {
      normalised.push_back(NormaliseFlag(argument, dashes, &is_value));
    } else {
      normalised.push_back({argument});
    }
  }
  return normalised;
}

// Abseil says of a duration without a unit only that it is illegal.
void CheckDurations(const std::vector<Argument>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_flag) continue;
    const std::string text = arguments[i].text.substr(arguments[i].text.find_first_not_of('-'));
    const size_t name_end = std::min(text.find('='), text.size());
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(text.substr(0, name_end));
    if (flag == nullptr || !flag->IsOfType<absl::Duration>()) continue;
    if (name_end == text.size() && i + 1 == arguments.size()) continue;  // Abseil misses the value
    const std::string value = name_end < text.size() ? text.substr(name_end + 1) : arguments[i + 1].text;
    absl::Duration parsed;
    if (absl::ParseDuration(value, &parsed)) continue;
    std::fprintf(stderr, "ERROR: --%s: \"%s\" is not a duration with its unit, as 5s, 200ms or 1m30s\n",
                 std::string(flag->Name()).c_str(), value.c_str());
    std::exit(1);
  }
}

constexpr int kMostNestedFiles = 8;
constexpr int64_t kMaxFlagFileBytes = 1 << 20;

// The lines of a flag's file that are flags, as Abseil reads it. An error names --flagfile and the file.
absl::StatusOr<std::vector<Argument>> FlagsOfFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxFlagFileBytes);
  if (!text.ok()) return InvalidField("--flagfile", text.status().message());
  std::vector<Argument> flags;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (absl::StartsWith(line, "-")) flags.push_back({std::string(line), true});
  }
  return flags;
}

// Up to the first file that cannot be read.
absl::Status AppendGiven(const std::vector<Argument>& arguments, int nested,
                         std::vector<std::string>* given) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_flag) continue;
    absl::string_view text = arguments[i].text;
    text.remove_prefix(std::min(text.find_first_not_of('-'), text.size()));
    const absl::string_view name = text.substr(0, text.find('='));
    const absl::string_view positive = absl::StripPrefix(name, "no");
    const bool is_negated =
        absl::FindCommandLineFlag(name) == nullptr && absl::FindCommandLineFlag(positive) != nullptr;
    given->emplace_back(is_negated ? positive : name);
    if (name != "flagfile") continue;
    const bool has_value = name.size() < text.size();
    if (!has_value && i + 1 == arguments.size()) continue;  // Abseil misses the value
    const absl::string_view paths =
        has_value ? text.substr(name.size() + 1) : absl::string_view(arguments[i + 1].text);
    for (const absl::string_view path : absl::StrSplit(paths, ',', absl::SkipEmpty())) {
      if (nested == kMostNestedFiles) {
        return InvalidField("--flagfile", absl::StrCat(path, ": more than ", kMostNestedFiles,
                                                       " files that name one another"));
      }
      const absl::StatusOr<std::vector<Argument>> flags = FlagsOfFile(std::string(path));
      if (!flags.ok()) return flags.status();
      if (absl::Status status = AppendGiven(*flags, nested + 1, given); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

bool AsksForHelp(const Argument& argument) {
  const absl::string_view name = absl::StripPrefix(absl::StripPrefix(argument.text, "-"), "-");
  return argument.is_flag && IsHelp(name.substr(0, name.find('=')));
}

}  // namespace

std::vector<std::string> NormaliseFlagNames(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (Argument& argument : Normalise(arguments)) names.push_back(std::move(argument.text));
  return names;
}

std::vector<std::string> GivenFlags(const std::vector<std::string>& arguments) {
  std::vector<std::string> given;
  AppendGiven(Normalise(arguments), 0, &given).IgnoreError();  // ParseFlags reports it
  return given;
}

bool IsHelp(absl::string_view name) {
  return name == "h" || absl::StartsWith(name, "help");
}

std::string FlagHelp(absl::string_view usage, const std::vector<std::string>& names) {
  std::string text = absl::StrCat(usage, "\n\nFlags (dashes and underscores are the same):\n");
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const std::string value = flag->DefaultValue();
    absl::StrAppend(&text, "  --", absl::StrReplaceAll(name, {{"_", "-"}}), "\n      ", flag->Help(),
                    value.empty() ? "" : absl::StrCat(" (default: ", value, ")"), "\n");
  }
  absl::StrAppend(&text, "  --flagfile\n      file with one --name=value a line, names with underscores\n");
  return text;
}

std::vector<std::string> ParseFlags(absl::string_view usage, int argc, char** argv) {
  absl::SetProgramUsageMessage(usage);
  absl::FlagsUsageConfig config;
  config.contains_help_flags = IsOurs;
  config.version_string = [] { return std::string("ridge " RIDGE_VERSION "\n"); };
  absl::SetFlagsUsageConfig(config);

  std::vector<Argument> normalised = Normalise(std::vector<std::string>(argv, argv + argc));
  if (std::any_of(normalised.begin(), normalised.end(), AsksForHelp)) {
    PrintHelp(usage);
    std::exit(0);
  }
  CheckDurations(normalised);
  // Abseil takes a directory for an empty file.
  std::vector<std::string> given;
  if (const absl::Status status = AppendGiven(normalised, 0, &given); !status.ok()) {
    std::fprintf(stderr, "ERROR: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
  std::vector<char*> pointers;
  for (Argument& argument : normalised) pointers.push_back(argument.text.data());
  const std::vector<char*> rest = absl::ParseCommandLine(argc, pointers.data());
  return std::vector<std::string>(rest.begin() + 1, rest.end());
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view flag_name, absl::string_view text) {
  struct Suffix {
    absl::string_view name;
    int64_t factor;
  };
  constexpr Suffix kSuffixes[] = {{"KiB", int64_t{1} << 10},
                                  {"MiB", int64_t{1} << 20},
                                  {"GiB", int64_t{1} << 30},
                                  {"TiB", int64_t{1} << 40}};
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
    return InvalidField(
        absl::StrCat("--", flag_name),
        absl::StrCat("\"", text, "\" is not a size such as 1073741824, 64KiB, 512MiB, 2GiB or 1TiB"));
  }
  return value * factor;
}

}  // namespace ridge
