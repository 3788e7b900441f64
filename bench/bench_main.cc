// ridge-bench: a table of subcommands.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "bench/ask.h"
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

constexpr Subcommand kSubcommands[] = {
    {"ask", "send one request and stream the answer: --prompt TEXT, --chat TEXT or --prompt_ids 1,2,3",
     RunAsk},
};

int Usage() {
  std::fprintf(stderr, "usage: ridge-bench SUBCOMMAND [flags]; --help lists the flags\n");
  for (const Subcommand& subcommand : kSubcommands)
    std::fprintf(stderr, "  %-8s %s\n", subcommand.name, subcommand.what);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments =
      ridge::ParseFlags("Clients and measurements: ridge-bench SUBCOMMAND [flags].", argc, argv);
  ridge::InitLogging("ridge-bench", "warning");
  if (arguments.size() != 1) {
    if (arguments.size() > 1)
      std::fprintf(stderr, "ridge-bench: unexpected argument: %s\n", arguments[1].c_str());
    return Usage();
  }
  for (const Subcommand& subcommand : kSubcommands) {
    if (arguments[0] != subcommand.name) continue;
    const absl::Status status = subcommand.run();
    if (status.ok()) return 0;
    std::fprintf(stderr, "ridge-bench %s: %s\n", subcommand.name, status.ToString().c_str());
    return 1;
  }
  std::fprintf(stderr, "ridge-bench: no subcommand \"%s\"\n", arguments[0].c_str());
  return Usage();
}
