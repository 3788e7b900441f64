#include "bench/workload/trace.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

using nlohmann::json;

constexpr int64_t kMostTokens = int64_t{1} << 24;

struct Recorded {
  double at_s = 0;
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;
  std::vector<int64_t> blocks;
};

absl::Status BadLine(const std::string& origin, size_t line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(origin, ", line ", line, ": ", what));
}

absl::Status CheckRecorded(const Recorded& recorded, const std::string& origin, size_t line) {
  if (!std::isfinite(recorded.at_s)) return BadLine(origin, line, "the time is not a finite number");
  for (const int64_t tokens : {recorded.prompt_tokens, recorded.answer_tokens}) {
    if (tokens < 0 || tokens > kMostTokens) {
      return BadLine(origin, line, absl::StrCat(tokens, " tokens are not in 0 to ", kMostTokens));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Trace> ToTrace(std::vector<Recorded> all, const std::string& origin,
                              const TraceOptions& options) {
  if (all.empty()) return absl::InvalidArgumentError(origin + ": no requests");
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  Trace trace;
  trace.workload.name = "trace";
  trace.workload.origin = absl::StrCat(origin, ", times x ", options.time_scale);
  const double begin_s = all.front().at_s;
  for (Recorded& recorded : all) {
    if (options.most_requests > 0 &&
        static_cast<int32_t>(trace.workload.items.size()) == options.most_requests)
      break;
    if (recorded.prompt_tokens == 0 || recorded.answer_tokens == 0) {
      ++trace.failed;
    } else if (recorded.prompt_tokens + recorded.answer_tokens > options.most_tokens) {
      ++trace.too_long;
    } else {
      trace.workload.items.push_back({"trace", static_cast<int32_t>(recorded.prompt_tokens),
                                      static_cast<int32_t>(recorded.answer_tokens),
                                      (recorded.at_s - begin_s) * options.time_scale,
                                      std::move(recorded.blocks)});
    }
  }
  if (trace.workload.items.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": no request is left: ", trace.failed,
                                                   " failed, ", trace.too_long, " have more than ",
                                                   options.most_tokens, " tokens"));
  }
  return trace;
}

absl::StatusOr<Recorded> MooncakeLine(absl::string_view text, const std::string& origin, size_t number) {
  const json line = json::parse(text.begin(), text.end(), nullptr, false);
  if (!line.is_object()) return BadLine(origin, number, "not a JSON object");
  for (const char* key : {"timestamp", "input_length", "output_length"}) {
    if (!line.contains(key) || !line[key].is_number())
      return BadLine(origin, number, absl::StrCat(key, ": not a number"));
  }
  for (const char* key : {"input_length", "output_length"}) {
    const auto tokens = line[key].get<double>();
    if (!(tokens >= 0 && tokens <= kMostTokens)) {
      return BadLine(origin, number,
                     absl::StrCat(key, ": ", tokens, " tokens are not in 0 to ", kMostTokens));
    }
  }
  Recorded recorded;
  recorded.at_s = line["timestamp"].get<double>() / 1e3;
  recorded.prompt_tokens = line["input_length"].get<int64_t>();
  recorded.answer_tokens = line["output_length"].get<int64_t>();
  if (line.contains("hash_ids")) {
    const json& ids = line["hash_ids"];
    if (!ids.is_array()) return BadLine(origin, number, "hash_ids: not an array");
    for (const json& id : ids) {
      if (!id.is_number_integer())
        return BadLine(origin, number, "hash_ids: holds something that is not an integer");
      recorded.blocks.push_back(id.get<int64_t>());
    }
    const int64_t most = (recorded.prompt_tokens + kPrefixBlockTokens - 1) / kPrefixBlockTokens;
    if (static_cast<int64_t>(recorded.blocks.size()) > most) {
      return BadLine(origin, number,
                     absl::StrCat("hash_ids: ", recorded.blocks.size(), " blocks for ",
                                  recorded.prompt_tokens, " tokens"));
    }
  }
  return recorded;
}

}  // namespace

absl::StatusOr<Trace> FromMooncake(absl::string_view text, const std::string& origin,
                                   const TraceOptions& options) {
  std::vector<Recorded> all;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<Recorded> recorded = MooncakeLine(line, origin, number);
    if (!recorded.ok()) return recorded.status();
    if (absl::Status status = CheckRecorded(*recorded, origin, number); !status.ok()) return status;
    all.push_back(*std::move(recorded));
  }
  return ToTrace(std::move(all), origin, options);
}

absl::StatusOr<Trace> FromBurstGpt(absl::string_view text, const std::string& origin,
                                   const TraceOptions& options) {
  std::vector<Recorded> all;
  std::map<std::string, size_t, std::less<>> columns;
  size_t number = 0;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
    if (columns.empty()) {
      for (size_t i = 0; i < fields.size(); ++i) columns.emplace(absl::StripAsciiWhitespace(fields[i]), i);
      for (const char* name : {"Timestamp", "Request tokens", "Response tokens"}) {
        if (!columns.contains(name)) return BadLine(origin, number, absl::StrCat("no column \"", name, "\""));
      }
      continue;
    }
    if (fields.size() != columns.size()) {
      return BadLine(origin, number, absl::StrCat(fields.size(), " fields, the header has ", columns.size()));
    }
    Recorded recorded;
    const auto field = [&](const char* name) { return fields[columns.find(name)->second]; };
    if (!absl::SimpleAtod(field("Timestamp"), &recorded.at_s))
      return BadLine(origin, number, "Timestamp: not a number");
    if (!absl::SimpleAtoi(field("Request tokens"), &recorded.prompt_tokens) ||
        !absl::SimpleAtoi(field("Response tokens"), &recorded.answer_tokens)) {
      return BadLine(origin, number, "Request tokens, Response tokens: not integers");
    }
    if (absl::Status status = CheckRecorded(recorded, origin, number); !status.ok()) return status;
    all.push_back(std::move(recorded));
  }
  return ToTrace(std::move(all), origin, options);
}

}  // namespace ridge::bench
