#include "bench/command_flags.h"

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace ridge::bench {
namespace {

constexpr char kAsk[] =
    "target model prompt chat system prompt_ids max_tokens temperature top_p top_k min_p seed stop "
    "ignore_eos timeout";
// An engine in this process.
constexpr char kModel[] = " model device threads";
constexpr char kEngine[] =
    " engine memory admission prefill step decode_attention launch prefix_cache kv_cache_bytes step_tokens "
    "chunk_tokens "
    "max_context virtual_clock";
// What is recorded, and of which prompts.
constexpr char kRecords[] = " out source commit";
constexpr char kClosed[] =
    " prompts batch_size new_tokens mixed draw_seed runs warmup most_time largest_warmed";
constexpr char kTrace[] = " workload mooncake burstgpt time_scale most_tokens requests draw_seed";
constexpr char kTimes[] = " rates last_rate burstiness";
constexpr char kPasses[] = " in_flight least_served stop_above goodput first_rate ttft_limit itl_limit";
constexpr char kService[] = " target connections request_timeout called cancelled_share";

struct Command {
  absl::string_view name;
  std::string flags;  // separated by spaces
};

const std::vector<Command>& Commands() {
  static const auto& commands = *new std::vector<Command>{
      {"ask", kAsk},
      {"closed", absl::StrCat(kModel, " expect_device max_batch", kEngine, kRecords, kClosed)},
      {"arrivals",
       absl::StrCat(kModel, " expect_device max_batch", kEngine, kRecords, kTrace, kTimes, kPasses)},
      {"replay", absl::StrCat(kModel, " expect_device max_batch", kEngine, kRecords, kTrace, kTimes, kPasses,
                              kService)},
      {"serve-load", absl::StrCat("model", kService, kRecords, kTrace, kTimes, kPasses)},
      {"draw", absl::StrCat("model out source", kTrace, kTimes)},
      {"overhead", absl::StrCat(kModel, " expect_device commit", kEngine)},
      {"parity", absl::StrCat("a b source engine", kModel)},
      {"roofline", "model card records out"}};
  return commands;
}

// A flag that changes nothing without one of others, or beside one of them.
struct Rule {
  absl::string_view flag;
  bool needs;
  absl::string_view others;  // separated by spaces
};
constexpr Rule kRules[] = {
    {"time_scale", true, "mooncake burstgpt"},
    {"most_tokens", true, "mooncake burstgpt"},
    {"first_rate", true, "goodput"},
    {"ttft_limit", true, "goodput"},
    {"itl_limit", true, "goodput"},
    {"last_rate", true, "rates"},
    {"least_served", true, "rates"},
    {"requests", false, "workload"},
    {"goodput", false, "rates in_flight"},
    {"system", true, "chat"},
};

// Nothing is a value of these: a default of its own, or a refusal that says what is required.
constexpr char kMayBeEmpty[] =
    "model prompt chat system out a b commit expect_device memory admission prefill step decode_attention "
    "launch prefix_cache";

}  // namespace

std::vector<std::string> FlagsOf(absl::string_view command) {
  for (const Command& known : Commands()) {
    if (known.name == command) return absl::StrSplit(known.flags, ' ', absl::SkipEmpty());
  }
  return {};
}

absl::Status CheckCommandFlags(absl::string_view command, const std::vector<std::string>& given) {
  const std::vector<std::string> taken = FlagsOf(command);
  for (const std::string& flag : given) {
    if (absl::c_linear_search(taken, flag)) continue;
    std::vector<absl::string_view> owners;
    for (const Command& known : Commands()) {
      if (absl::c_linear_search(FlagsOf(known.name), flag)) owners.push_back(known.name);
    }
    if (owners.empty()) continue;  // of a library
    return InvalidField(absl::StrCat("--", flag),
                        absl::StrCat("is not a flag of ", command, " but of ", absl::StrJoin(owners, ", ")));
  }
  for (const Rule& rule : kRules) {
    if (!absl::c_linear_search(given, rule.flag)) continue;
    const std::vector<std::string> others = absl::StrSplit(rule.others, ' ');
    const bool is_there =
        absl::c_any_of(others, [&](const std::string& other) { return absl::c_linear_search(given, other); });
    if (is_there == rule.needs) continue;
    return InvalidField(
        absl::StrCat("--", rule.flag),
        absl::StrCat(rule.needs ? "needs --" : "does not go with --", absl::StrJoin(others, " or --")));
  }
  return absl::OkStatus();
}

absl::Status CheckEmptyValues(absl::string_view command, const std::vector<std::string>& given) {
  const std::vector<std::string> taken = FlagsOf(command);
  const std::vector<std::string> may_be_empty = absl::StrSplit(kMayBeEmpty, ' ');
  for (const std::string& flag : given) {
    if (!absl::c_linear_search(taken, flag) || absl::c_linear_search(may_be_empty, flag)) continue;
    const absl::CommandLineFlag* found = absl::FindCommandLineFlag(flag);
    if (found != nullptr && found->CurrentValue().empty()) {
      return InvalidField(absl::StrCat("--", flag), "has no value; leave it out for the default");
    }
  }
  return absl::OkStatus();
}

}  // namespace ridge::bench
