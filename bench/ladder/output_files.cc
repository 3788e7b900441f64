#include "bench/ladder/output_files.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/records/gzip_file.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

using nlohmann::json;

// A line as runs.jsonl has it.
struct Line {
  std::string workload, hash;
  int32_t sequence = 0, prompt_tokens = 0;
  std::vector<int32_t> ids;
  bool has_ids = false;
};

absl::StatusOr<Line> ParseLine(absl::string_view text) {
  const json value = json::parse(text.begin(), text.end(), nullptr, false);
  if (!value.is_object()) return absl::InvalidArgumentError("not a JSON object");
  for (const char* key : {"workload", "output_sha8"}) {
    if (!value.contains(key) || !value[key].is_string())
      return absl::InvalidArgumentError(absl::StrCat(key, ": not a string"));
  }
  for (const char* key : {"sequence_index", "prompt_tokens"}) {
    if (!value.contains(key) || !value[key].is_number_integer()) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": not an integer"));
    }
  }
  Line line{
      value["workload"], value["output_sha8"], value["sequence_index"], value["prompt_tokens"], {}, false};
  if (!value.contains("token_ids")) return line;
  line.has_ids = true;
  for (const json& id : value["token_ids"]) {
    if (!id.is_number_integer())
      return absl::InvalidArgumentError("token_ids: holds something that is not an integer");
    line.ids.push_back(id);
  }
  return line;
}

}  // namespace

absl::StatusOr<Outputs> ReadOutputs(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadGzip(path);
  if (!text.ok()) return text.status();
  absl::flat_hash_map<std::string, std::vector<int32_t>> by_hash;
  Outputs outputs;
  int number = 0;
  for (absl::string_view row : absl::StrSplit(*text, '\n')) {
    ++number;
    if (row.empty()) continue;
    absl::StatusOr<Line> line = ParseLine(row);
    if (!line.ok())
      return absl::InvalidArgumentError(absl::StrCat(path, ", line ", number, ": ", line.status().message()));
    if (line->has_ids) by_hash[line->hash] = std::move(line->ids);
    const auto ids = by_hash.find(line->hash);
    if (ids == by_hash.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ", line ", number, ": no line before has the ids of ", line->hash));
    }
    const auto [output, is_new] =
        outputs.try_emplace({line->workload, line->sequence}, Output{line->prompt_tokens, ids->second});
    if (!is_new && output->second.ids != ids->second) {
      return absl::FailedPreconditionError(absl::StrCat(path, ", line ", number, ": ", line->workload,
                                                        " sequence ", line->sequence,
                                                        " gave other tokens than in an earlier run"));
    }
  }
  return outputs;
}

int32_t FirstDifference(const Output& a, const Output& b) {
  const auto [in_a, in_b] = std::mismatch(a.ids.begin(), a.ids.end(), b.ids.begin(), b.ids.end());
  if (in_a == a.ids.end() && in_b == b.ids.end()) return -1;
  return static_cast<int32_t>(in_a - a.ids.begin());
}

}  // namespace ridge::bench
