#include "worker/backend/simulated/card.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/read_file.h"
#include "worker/backend/simulated/built_in_cards.h"

namespace ridge::worker {
namespace {

constexpr int64_t kMaxCardBytes = 1 << 20;

std::map<std::string, double*> NumbersOf(SimulatedCard* card) {
  return {{"memory_bytes", &card->memory_bytes},
          {"weight_bytes_per_second", &card->weight_bytes_per_second},
          {"flops_per_second", &card->flops_per_second},
          {"prefill_attention_flops", &card->prefill_attention_flops},
          {"attention_bytes_per_second", &card->attention_bytes_per_second},
          {"one_pass_transfers", &card->one_pass_transfers},
          {"rectangle_transfers", &card->rectangle_transfers},
          {"split_transfers", &card->split_transfers},
          {"walk_bytes_per_second", &card->walk_bytes_per_second},
          {"step_us", &card->step_us},
          {"launches_per_layer", &card->launches_per_layer},
          {"launches_per_step", &card->launches_per_step},
          {"launch_us", &card->launch_us},
          {"stream_launch_us", &card->stream_launch_us},
          {"replay_launch_us", &card->replay_launch_us}};
}

}  // namespace

absl::StatusOr<SimulatedCard> ParseCard(absl::string_view text, absl::string_view origin) {
  SimulatedCard card;
  const std::map<std::string, double*> numbers = NumbersOf(&card);
  std::set<std::string> seen;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const size_t end_of_key = std::min(line.find_first_of(" \t"), line.size());
    const std::string key(line.substr(0, end_of_key));
    const absl::string_view value = absl::StripAsciiWhitespace(line.substr(end_of_key));
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": line ", line_number, ": ", key, ": ", what));
    };
    const auto number = numbers.find(key);
    if (key != "device" && number == numbers.end()) return wrong("unknown key");
    if (!seen.insert(key).second) return wrong("given twice");
    if (value.empty()) return wrong("no value");
    if (key == "device") {
      card.device = std::string(value);
    } else if (!absl::SimpleAtod(value, number->second) || !std::isfinite(*number->second) ||
               *number->second < 0) {
      return wrong(absl::StrCat("\"", value, "\" is not a number of 0 or more"));
    }
  }
  std::vector<std::string> missing;
  if (!seen.contains("device")) missing.push_back("device");
  for (const auto& [key, number] : numbers) {
    if (!seen.contains(key)) missing.push_back(key);
  }
  if (!missing.empty())
    return absl::InvalidArgumentError(absl::StrCat(origin, ": missing: ", absl::StrJoin(missing, ", ")));
  return card;
}

absl::StatusOr<SimulatedCard> LoadCard(absl::string_view name_or_path) {
  if (name_or_path.find('/') != absl::string_view::npos) {
    const absl::StatusOr<std::string> text = ReadFile(std::string(name_or_path), kMaxCardBytes);
    return text.ok() ? ParseCard(*text, name_or_path) : text.status();
  }
  std::vector<std::string> names;
  for (const BuiltInCard& card : kBuiltInCards) {
    if (card.name == name_or_path) return ParseCard(card.text, absl::StrCat("card ", name_or_path));
    names.emplace_back(card.name);
  }
  return absl::NotFoundError(absl::StrCat(
      "no card \"", name_or_path, "\"; there is: ", absl::StrJoin(names, ", "), "; or a file's path"));
}

}  // namespace ridge::worker
