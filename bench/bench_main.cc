// ridge-bench: a table of subcommands.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/ask.h"
#include "bench/command_flags.h"
#include "bench/ladder/draw_command.h"
#include "bench/ladder/ladder.h"
#include "bench/ladder/probe_commands.h"
#include "bench/measure/pass_flags.h"
#include "bench/roofline_command.h"
#include "bench/serve/serve_load.h"
#include "common/flags.h"
#include "common/logging.h"
#include "common/status.h"

namespace {

using Given = std::vector<std::string>;  // the names of the flags on the command line

struct Subcommand {
  const char* name;
  const char* what;
  absl::Status (*run)(const Given& given);
};

absl::Status RunAsk(const Given&) {
  const absl::StatusOr<ridge::bench::AskConfig> config = ridge::bench::AskConfigFromFlags();
  if (!config.ok()) return config.status();
  return ridge::bench::Ask(*config, std::cout, std::cerr);
}

absl::Status RunClosedRuns(const Given&) {
  const absl::StatusOr<ridge::bench::LadderConfig> config = ridge::bench::LadderConfigFromFlags();
  if (!config.ok()) return config.status();
  const absl::StatusOr<ridge::bench::ClosedFlags> flags = ridge::bench::ClosedFlagsFromFlags();
  if (!flags.ok()) return flags.status();
  return ridge::bench::Closed(*config, *flags, std::cerr);
}

absl::Status RunArrivals(const Given&) {
  absl::StatusOr<ridge::bench::LadderConfig> config = ridge::bench::LadderConfigFromFlags();
  if (!config.ok()) return config.status();
  config->on_terminal = isatty(STDERR_FILENO) != 0;
  const absl::StatusOr<ridge::bench::PassFlags> flags = ridge::bench::PassFlagsFromFlags();
  if (!flags.ok()) return flags.status();
  return ridge::bench::ArrivalSweep(*config, *flags, std::cerr);
}

absl::Status RunOverhead(const Given&) {
  const absl::StatusOr<ridge::bench::LadderConfig> config = ridge::bench::LadderConfigFromFlags();
  if (!config.ok()) return config.status();
  return ridge::bench::Overhead(*config, std::cout);
}

absl::Status RunParity(const Given&) {
  return ridge::bench::Parity(std::cout);
}

absl::Status RunServeLoad(const Given&) {
  absl::StatusOr<ridge::bench::ServeLoadConfig> config = ridge::bench::ServeLoadConfigFromFlags();
  if (!config.ok()) return config.status();
  config->on_terminal = isatty(STDERR_FILENO) != 0;
  const absl::StatusOr<ridge::bench::PassFlags> flags = ridge::bench::PassFlagsFromFlags();
  if (!flags.ok()) return flags.status();
  return ridge::bench::ServeLoad(*config, *flags, std::cerr);
}

// A trace or a frozen workload as it is: on a service, or on engines in this process.
absl::Status RunReplay(const Given& given) {
  const auto is_given = [&](const char* flag) { return absl::c_linear_search(given, flag); };
  if (!is_given("workload") && !is_given("mooncake") && !is_given("burstgpt")) {
    return ridge::InvalidField("--workload", "required, or --mooncake or --burstgpt: what is to be replayed");
  }
  if (!is_given("model") && !is_given("target")) {
    return ridge::InvalidField("--target",
                               "give it for a running service, or --model for engines in this process");
  }
  return is_given("target") ? RunServeLoad(given) : RunArrivals(given);
}

absl::Status RunDraw(const Given&) {
  return ridge::bench::Draw();
}

absl::Status RunRoofline(const Given&) {
  return ridge::bench::Roofline();
}

constexpr Subcommand kSubcommands[] = {
    {"ask", "send one request and stream the answer: --prompt TEXT, --chat TEXT or --prompt_ids 1,2,3",
     RunAsk},
    {"closed",
     "hand whole batches to engines in this process: --model, --engine, --prompts, --batch_size, --out",
     RunClosedRuns},
    {"arrivals", "requests that arrive over time: --model, --engine, --rates, --requests, --out",
     RunArrivals},
    {"serve-load", "load on a running service: --target, --rates or --in_flight or --goodput, --out",
     RunServeLoad},
    {"replay",
     "a recorded trace or frozen workload at its own times: --mooncake, --burstgpt or --workload; --model or "
     "--target",
     RunReplay},
    {"draw", "freeze a workload to a file: --requests, --rates, --mooncake, --burstgpt, --out FILE", RunDraw},
    {"overhead", "what a pass over one token costs, and what of it is the host's: --model, --device",
     RunOverhead},
    {"parity", "compare two folders of records token for token: --a, --b, --model for the gap", RunParity},
    {"roofline", "the arithmetic of a model on a card, as pages: --model, --card, --out", RunRoofline},
};

std::string Usage() {
  std::string usage =
      "usage: ridge-bench SUBCOMMAND [flags]; ridge-bench SUBCOMMAND --help lists its flags, --help alone "
      "all";
  for (const Subcommand& subcommand : kSubcommands) {
    absl::StrAppendFormat(&usage, "\n  %-10s %s", subcommand.name, subcommand.what);
  }
  return usage;
}

const Subcommand* Find(absl::string_view name) {
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name == name) return &subcommand;
  }
  return nullptr;
}

int FailWithUsage() {
  std::fprintf(stderr, "%s\n", Usage().c_str());
  return 1;
}

int FailUnknown(const std::string& name) {
  std::fprintf(stderr, "ridge-bench: no subcommand \"%s\"\n", name.c_str());
  return FailWithUsage();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  const Given given = ridge::GivenFlags(words);
  const Subcommand* asked = words.size() > 1 ? Find(words[1]) : nullptr;
  const bool is_help = absl::c_any_of(given, ridge::IsHelp);
  if (is_help && asked == nullptr && !absl::StartsWith(words[1], "-")) return FailUnknown(words[1]);
  if (asked != nullptr && is_help) {
    std::cout << ridge::FlagHelp(
        absl::StrCat("usage: ridge-bench ", asked->name, " [flags]\n  ", asked->what),
        ridge::bench::FlagsOf(asked->name));
    return 0;
  }
  const std::vector<std::string> arguments =
      ridge::ParseFlags(absl::StrCat("Clients and measurements.\n", Usage()), argc, argv);
  ridge::InitLogging("ridge-bench", "warning");
  if (arguments.size() != 1) {
    if (arguments.size() > 1)
      std::fprintf(stderr, "ridge-bench: unexpected argument: %s\n", arguments[1].c_str());
    return FailWithUsage();
  }
  const Subcommand* subcommand = Find(arguments[0]);
  if (subcommand == nullptr) return FailUnknown(arguments[0]);
  absl::Status status = ridge::bench::CheckCommandFlags(subcommand->name, given);
  if (status.ok()) status = ridge::bench::CheckFlagValues(subcommand->name, given);
  if (status.ok()) status = subcommand->run(given);
  if (status.ok()) return 0;
  std::fprintf(stderr, "ridge-bench %s: %s\n", subcommand->name, status.ToString().c_str());
  return 1;
}
