#include "bench/workload/workload.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/read_file.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kSchema[] = "ridge-workload/1";
constexpr int64_t kMaxFileBytes = 1 << 30;
constexpr int32_t kMostTokens = 1 << 24;

// One line of the file; what it lacks is remembered as the first error.
class Line {
 public:
  Line(absl::string_view text, std::string where)
      : where_(std::move(where)), value_(json::parse(text.begin(), text.end(), nullptr, false)) {
    if (!value_.is_object()) Fail("not a JSON object");
  }

  std::string Text(const char* key) {
    const json* field = Find(key, &json::is_string, "a string");
    return field == nullptr ? "" : field->get<std::string>();
  }

  int32_t Tokens(const char* key) {
    const json* field = Find(key, &json::is_number_integer, "an integer");
    if (field == nullptr) return 0;
    const auto value = field->get<int64_t>();
    if (value < 1 || value > kMostTokens)
      Fail(absl::StrCat(key, ": ", value, " is not in 1 to ", kMostTokens));
    return static_cast<int32_t>(value);
  }

  // Nothing where it is not there.
  std::optional<int64_t> Count(const char* key) {
    if (!status_.ok() || !value_.contains(key)) return std::nullopt;
    const json* field = Find(key, &json::is_number_integer, "an integer");
    return field == nullptr ? std::nullopt : std::optional(field->get<int64_t>());
  }

  double Seconds(const char* key) {
    const json* field = Find(key, &json::is_number, "a number");
    if (field == nullptr) return 0;
    const auto value = field->get<double>();
    if (!(value >= 0) || !std::isfinite(value))
      Fail(absl::StrCat(key, ": ", value, " is not a time from the start"));
    return value;
  }

  std::vector<int64_t> Integers(const char* key) {
    std::vector<int64_t> values;
    if (!value_.is_object() || !value_.contains(key)) return values;
    const json* field = Find(key, &json::is_array, "an array");
    if (field == nullptr) return values;
    for (const json& element : *field) {
      if (!element.is_number_integer())
        Fail(absl::StrCat(key, ": holds something that is not an integer"));
      else
        values.push_back(element.get<int64_t>());
    }
    return values;
  }

  void Fail(const std::string& what) { status_.Update(absl::InvalidArgumentError(where_ + ": " + what)); }
  const absl::Status& status() const { return status_; }

 private:
  const json* Find(const char* key, bool (json::*is_kind)() const noexcept, const char* kind) {
    if (!status_.ok()) return nullptr;
    const auto found = value_.find(key);
    if (found == value_.end())
      Fail(absl::StrCat(key, ": missing"));
    else if (!((*found).*is_kind)())
      Fail(absl::StrCat(key, ": not ", kind));
    return status_.ok() ? &*found : nullptr;
  }

  const std::string where_;
  const json value_;
  absl::Status status_;
};

absl::StatusOr<WorkItem> ParseItem(absl::string_view text, const std::string& where,
                                   double previous_arrival_s) {
  Line line(text, where);
  WorkItem item;
  item.label = line.Text("label");
  item.prompt_tokens = line.Tokens("prompt_tokens");
  item.max_tokens = line.Tokens("max_tokens");
  item.arrival_s = line.Seconds("arrival_s");
  item.prefix_blocks = line.Integers("prefix_blocks");
  if (item.arrival_s < previous_arrival_s) line.Fail("arrival_s: earlier than that of the line before");
  if (int64_t{kPrefixBlockTokens} * static_cast<int64_t>(item.prefix_blocks.size()) >=
      item.prompt_tokens + int64_t{kPrefixBlockTokens}) {
    line.Fail(absl::StrCat("prefix_blocks: more than ", item.prompt_tokens, " tokens can have"));
  }
  if (!line.status().ok()) return line.status();
  return item;
}

}  // namespace

int32_t LongestOf(const Workload& workload) {
  int32_t longest = 0;
  for (const WorkItem& item : workload.items)
    longest = std::max(longest, item.prompt_tokens + item.max_tokens);
  return longest;
}

std::string ToJsonLines(const Workload& workload) {
  std::string text = ordered_json{{"schema", kSchema},
                                  {"name", workload.name},
                                  {"origin", workload.origin},
                                  {"requests", workload.items.size()}}
                         .dump() +
                     "\n";
  for (size_t i = 0; i < workload.items.size(); ++i) {
    const WorkItem& item = workload.items[i];
    ordered_json line{{"index", i},
                      {"label", item.label},
                      {"prompt_tokens", item.prompt_tokens},
                      {"max_tokens", item.max_tokens},
                      {"arrival_s", item.arrival_s}};
    if (!item.prefix_blocks.empty()) line["prefix_blocks"] = item.prefix_blocks;
    text += line.dump() + "\n";
  }
  return text;
}

absl::StatusOr<Workload> FromJsonLines(absl::string_view text, const std::string& origin) {
  Workload workload;
  int64_t number = 0;
  std::optional<int64_t> announced;  // requests
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const std::string where = absl::StrCat(origin, ", line ", number);
    if (number == 1) {
      Line header(line, where);
      const std::string schema = header.Text("schema");
      workload.name = header.Text("name");
      workload.origin = header.Text("origin");
      if (header.status().ok() && schema != kSchema) {
        header.Fail(absl::StrCat("schema: \"", schema, "\" is not \"", kSchema, "\""));
      }
      announced = header.Count("requests");
      if (!header.status().ok()) return header.status();
      continue;
    }
    const double previous = workload.items.empty() ? 0 : workload.items.back().arrival_s;
    absl::StatusOr<WorkItem> item = ParseItem(line, where, previous);
    if (!item.ok()) return item.status();
    workload.items.push_back(*std::move(item));
  }
  if (workload.items.empty()) return absl::InvalidArgumentError(origin + ": no requests");
  if (const auto there = static_cast<int64_t>(workload.items.size()); announced.value_or(there) != there) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": has ", there, " of the ", *announced, " requests that its first line names"));
  }
  return workload;
}

absl::Status WriteText(const std::string& path, absl::string_view text) {
  std::ofstream file(path, std::ios::binary);
  const bool is_open = file.is_open();
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  const std::string reason = strerror(errno);
  std::error_code error;
  if (is_open && std::filesystem::is_regular_file(path, error)) std::filesystem::remove(path, error);
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", reason));
}

absl::Status WriteWorkload(const Workload& workload, const std::string& path) {
  return WriteText(path, ToJsonLines(workload));
}

absl::StatusOr<Workload> ReadWorkload(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  return text.ok() ? FromJsonLines(*text, path) : text.status();
}

}  // namespace ridge::bench
