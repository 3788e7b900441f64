#include "bench/command_flags.h"

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/utf8.h"

namespace ridge::bench {
namespace {

constexpr char kAsk[] =
    "target model prompt chat system prompt_ids max_tokens temperature top_p top_k min_p seed stop "
    "ignore_eos timeout";
// An engine in this process.
constexpr char kModel[] = " model device threads";
constexpr char kEngine[] =
    " engine memory admission prefill step decode_attention launch prefix_cache kv_cache_bytes step_tokens "
    "chunk_tokens max_context virtual_clock";
// A pass by hand heeds these alone.
constexpr char kProbe[] =
    " engine decode_attention launch kv_cache_bytes step_tokens max_context virtual_clock";
// What is recorded, and of which prompts.
constexpr char kRecords[] = " expect_device out source commit";
constexpr char kClosed[] =
    " prompts batch_size new_tokens mixed draw_seed runs warmup most_time largest_warmed";
constexpr char kTrace[] = " workload mooncake burstgpt time_scale most_tokens requests draw_seed";
constexpr char kTimes[] = " rates last_rate burstiness";
constexpr char kPasses[] = " in_flight least_served stop_above goodput first_rate ttft_limit itl_limit";
constexpr char kService[] = " target connections request_timeout called through cancelled_share";

struct Command {
  absl::string_view name;
  std::string flags;  // separated by spaces
};

const std::vector<Command>& Commands() {
  static const auto& commands = *new std::vector<Command>{
      {"ask", kAsk},
      {"closed", absl::StrCat(kModel, " max_batch", kEngine, kRecords, kClosed)},
      {"arrivals", absl::StrCat(kModel, " max_batch", kEngine, kRecords, kTrace, kTimes, kPasses)},
      {"replay", absl::StrCat(kModel, " max_batch", kEngine, kRecords, kTrace, kTimes, kPasses, kService)},
      {"serve-load", absl::StrCat("model", kService, kRecords, kTrace, kTimes, kPasses)},
      {"draw", absl::StrCat("model out source", kTrace, kTimes)},
      {"overhead", absl::StrCat(kModel, " expect_device commit", kProbe)},
      {"parity", absl::StrCat("a b source engine", kModel)},
      {"roofline", "model card records out"}};
  return commands;
}

// A flag that changes nothing without one of others, or beside one of them.
struct Rule {
  absl::string_view commands;  // separated by spaces, as the others; empty: all
  absl::string_view flag;
  bool needs;
  absl::string_view others;
  absl::string_view where = "";  // where one of these is given; empty: anyway
};
constexpr char kFiles[] = "workload mooncake burstgpt";
constexpr Rule kRules[] = {
    {"", "time_scale", true, "mooncake burstgpt"},
    {"", "time_scale", false, "rates in_flight goodput"},  // their requests come at other times
    {"", "most_tokens", true, "mooncake burstgpt"},
    {"", "first_rate", true, "goodput"},
    {"", "ttft_limit", true, "goodput"},
    {"", "itl_limit", true, "goodput"},
    {"", "last_rate", true, "rates"},
    {"", "least_served", true, "rates"},
    {"", "requests", false, "workload"},
    {"", "goodput", false, "rates in_flight"},
    {"", "system", true, "chat"},
    {"closed", "draw_seed", true, "mixed"},
    // A file's requests are there, and come at their own times or as soon as there is room.
    {"", "draw_seed", true, "rates goodput cancelled_share", kFiles},
    {"", "burstiness", true, "rates goodput", kFiles},
    {"", "burstiness", false, "in_flight"},
    {"draw parity", "source", true, "model"},
    {"parity", "engine", true, "model"},
    {"parity", "device", true, "model"},
    {"parity", "threads", true, "model"},
};

// Nothing is a value of these: a default of its own, or a refusal that says what is required.
constexpr char kMayBeEmpty[] =
    "model prompt chat system out a b commit expect_device memory admission prefill step decode_attention "
    "launch prefix_cache";

// `words` are separated by spaces.
bool Lists(absl::string_view words, absl::string_view word) {
  return absl::c_linear_search(absl::StrSplit(words, ' ', absl::SkipEmpty()), word);
}

bool GivesOneOf(const std::vector<std::string>& given, absl::string_view flags) {
  return absl::c_any_of(given, [&](const std::string& flag) { return Lists(flags, flag); });
}

std::vector<absl::string_view> CommandsWith(absl::string_view flag) {
  std::vector<absl::string_view> names;
  for (const Command& command : Commands()) {
    if (Lists(command.flags, flag)) names.push_back(command.name);
  }
  return names;
}

// A service has engine and device of its own; engines in this process have no clients.
absl::Status CheckReplayedOn(const std::vector<std::string>& given) {
  const bool on_service = absl::c_linear_search(given, "target");
  const std::vector<std::string> heeded = FlagsOf(on_service ? "serve-load" : "arrivals");
  for (const std::string& flag : given) {
    if (absl::c_linear_search(heeded, flag) || !absl::c_linear_search(FlagsOf("replay"), flag)) continue;
    return InvalidField(absl::StrCat("--", flag), on_service ? "does not go with --target, which is a "
                                                               "service with choices of its own"
                                                             : "needs --target");
  }
  return absl::OkStatus();
}

std::string ValueOf(absl::string_view flag) {
  const absl::CommandLineFlag* found = absl::FindCommandLineFlag(flag);
  return found == nullptr ? "" : found->CurrentValue();
}

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
    const std::vector<absl::string_view> owners = CommandsWith(flag);
    if (owners.empty()) continue;  // of a library
    return InvalidField(absl::StrCat("--", flag),
                        absl::StrCat("is not a flag of ", command, " but of ", absl::StrJoin(owners, ", ")));
  }
  if (command == "replay") {
    if (absl::Status status = CheckReplayedOn(given); !status.ok()) return status;
  }
  for (const Rule& rule : kRules) {
    const bool applies = (rule.commands.empty() || Lists(rule.commands, command)) &&
                         (rule.where.empty() || GivesOneOf(given, rule.where));
    if (!applies || !absl::c_linear_search(given, rule.flag) ||
        GivesOneOf(given, rule.others) == rule.needs) {
      continue;
    }
    const std::string others = absl::StrReplaceAll(rule.others, {{" ", " or --"}});
    return InvalidField(absl::StrCat("--", rule.flag),
                        absl::StrCat(rule.needs ? "needs --" : "does not go with --", others));
  }
  return absl::OkStatus();
}

absl::Status CheckFlagValues(absl::string_view command, const std::vector<std::string>& given) {
  const std::vector<std::string> taken = FlagsOf(command);
  for (const std::string& flag : given) {
    if (!absl::c_linear_search(taken, flag)) continue;
    // What is recorded is text.
    if (!IsValidUtf8(ValueOf(flag))) return InvalidField(absl::StrCat("--", flag), "not valid UTF-8");
    if (ValueOf(flag).empty() && !Lists(kMayBeEmpty, flag)) {
      return InvalidField(absl::StrCat("--", flag), "has no value; leave it out for the default");
    }
  }
  const auto is_given = [&](const char* flag) { return absl::c_linear_search(given, flag); };
  const std::string device = ValueOf("device");
  const bool is_simulated = absl::StartsWith(device, "simulated:");
  if (is_given("virtual_clock") && !is_simulated) {
    return InvalidField("--virtual_clock", absl::StrCat("only a simulated device has one, not ", device));
  }
  if (is_given("threads") && (is_simulated || device == "cuda")) {
    return InvalidField("--threads", absl::StrCat("only a CPU computes by threads, not ", device));
  }
  if (command == "closed" && ValueOf("prompts") == "none") {
    for (const char* flag : {"batch_size", "new_tokens"}) {
      if (is_given(flag)) return InvalidField(absl::StrCat("--", flag), "does not go with --prompts none");
    }
  }
  return absl::OkStatus();
}

}  // namespace ridge::bench
