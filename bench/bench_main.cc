// ridge-bench: a table of subcommands.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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
