// ridge-bench: a table of subcommands.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/ask.h"
#include "bench/ladder/draw_command.h"
#include "bench/ladder/ladder.h"
#include "bench/ladder/probe_commands.h"
#include "bench/measure/pass_flags.h"
#include "bench/roofline_command.h"
#include "bench/serve/serve_load.h"
#include "common/flags.h"
#include "common/logging.h"

namespace {

struct Subcommand {
  const char* name;
  const char* what;
  absl::Status (*run)();
};

absl::Status RunAsk() {
  const absl::StatusOr<ridge::bench::AskConfig> config = ridge::bench::AskConfigFromFlags();
  if (!config.ok()) return config.status();
  return ridge::bench::Ask(*config, std::cout, std::cerr);
}

absl::Status RunClosedRuns() {
  const absl::StatusOr<ridge::bench::LadderConfig> config = ridge::bench::LadderConfigFromFlags();
  if (!config.ok()) return config.status();
  const absl::StatusOr<ridge::bench::ClosedFlags> flags = ridge::bench::ClosedFlagsFromFlags();
  if (!flags.ok()) return flags.status();
  return ridge::bench::Closed(*config, *flags, std::cerr);
}

absl::Status RunArrivals() {
  const absl::StatusOr<ridge::bench::LadderConfig> config = ridge::bench::LadderConfigFromFlags();
  if (!config.ok()) return config.status();
  const absl::StatusOr<ridge::bench::PassFlags> flags = ridge::bench::PassFlagsFromFlags();
  if (!flags.ok()) return flags.status();
  return ridge::bench::ArrivalSweep(*config, *flags, std::cerr);
}

absl::Status RunOverhead() {
  const absl::StatusOr<ridge::bench::LadderConfig> config = ridge::bench::LadderConfigFromFlags();
  if (!config.ok()) return config.status();
  return ridge::bench::Overhead(*config, std::cout);
}

absl::Status RunParity() {
  return ridge::bench::Parity(std::cout);
}

absl::Status RunServeLoad() {
  const absl::StatusOr<ridge::bench::ServeLoadConfig> config = ridge::bench::ServeLoadConfigFromFlags();
  if (!config.ok()) return config.status();
  const absl::StatusOr<ridge::bench::PassFlags> flags = ridge::bench::PassFlagsFromFlags();
  if (!flags.ok()) return flags.status();
  return ridge::bench::ServeLoad(*config, *flags, std::cerr);
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
    {"draw", "freeze a workload to a file: --requests, --rates, --mooncake, --burstgpt, --out FILE",
     ridge::bench::Draw},
    {"overhead", "what a pass over one token costs, and what of it is the host's: --model, --device",
     RunOverhead},
    {"parity", "compare two folders of records token for token: --a, --b, --model for the gap", RunParity},
    {"roofline", "the arithmetic of a model on a card, as pages: --model, --card, --out",
     ridge::bench::Roofline},
};

std::string Usage() {
  std::string usage = "usage: ridge-bench SUBCOMMAND [flags]; --help lists the flags";
  for (const Subcommand& subcommand : kSubcommands) {
    absl::StrAppendFormat(&usage, "\n  %-8s %s", subcommand.name, subcommand.what);
  }
  return usage;
}

int FailWithUsage() {
  std::fprintf(stderr, "%s\n", Usage().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments =
      ridge::ParseFlags(absl::StrCat("Clients and measurements.\n", Usage()), argc, argv);
  ridge::InitLogging("ridge-bench", "warning");
  if (arguments.size() != 1) {
    if (arguments.size() > 1)
      std::fprintf(stderr, "ridge-bench: unexpected argument: %s\n", arguments[1].c_str());
    return FailWithUsage();
  }
  for (const Subcommand& subcommand : kSubcommands) {
    if (arguments[0] != subcommand.name) continue;
    const absl::Status status = subcommand.run();
    if (status.ok()) return 0;
    std::fprintf(stderr, "ridge-bench %s: %s\n", subcommand.name, status.ToString().c_str());
    return 1;
  }
  std::fprintf(stderr, "ridge-bench: no subcommand \"%s\"\n", arguments[0].c_str());
  return FailWithUsage();
}
