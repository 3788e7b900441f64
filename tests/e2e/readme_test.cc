// The README's commands under "Talk to it", run as they stand there against real processes and a real model.
// Only paths and the address change.
//
// Needs RIDGE_TEST_MODEL (the README's model) and RIDGE_TEST_GRPCURL; without them the test is skipped, or
// fails where RIDGE_REQUIRE_TOOLS=1.

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kSection[] = "## Talk to it\n";
constexpr char kGrpcurl[] = "grpcurl ";
constexpr char kBench[] = "build/release/bin/ridge-bench ";
constexpr char kRouterAddress[] = "127.0.0.1:50050";

// What a command that holds `command_part` prints.
struct Expectation {
  const char* command_part;
  std::vector<const char*> output_parts;
};

const Expectation kExpectations[] = {
    {"Inference/Generate",
     {"\"tokens\": [", "\"id\": ", "\"text\": ", "\"finish_reason\": ", "\"completion_tokens\": "}},
    {"Inference/GetModel",
     {"\"architecture\": \"llama\"", "\"vocab_size\": 49152", "\"has_tokenizer\": true"}},
    {"Health/Check", {"\"status\": \"SERVING\""}},
    {"ridge-bench ask", {" completion tokens, finish: ", "TTFT ", "ITL p50 ", " tokens/s"}},
};

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The contents of the section's ```sh blocks.
std::vector<std::string> ReadmeCommands() {
  std::ifstream file(absl::StrCat(RIDGE_SOURCE_DIR, "/README.md"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string readme = text.str();
  const size_t begin = readme.find(kSection);
  if (begin == std::string::npos) return {};
  const size_t end = readme.find("\n## ", begin + 1);
  absl::string_view section = absl::string_view(readme).substr(begin, end - begin);
  std::vector<std::string> commands;
  constexpr absl::string_view kOpening = "\n```sh\n", kClosing = "\n```";
  for (size_t open; (open = section.find(kOpening)) != absl::string_view::npos;) {
    section.remove_prefix(open + kOpening.size());
    commands.emplace_back(section.substr(0, section.find(kClosing)));
  }
  return commands;
}

// The command as it runs here; empty where it is none that this test knows.
std::string Localised(const std::string& command, const std::string& grpcurl, const std::string& router) {
  const std::string here = absl::StrReplaceAll(command, {{kRouterAddress, router}});
  if (absl::StartsWith(here, kGrpcurl)) return absl::StrCat(grpcurl, " ", here.substr(sizeof(kGrpcurl) - 1));
  if (absl::StartsWith(here, kBench)) {
    const std::string target = absl::StrContains(here, "--target") ? "" : absl::StrCat(" --target ", router);
    return absl::StrCat(BinaryPath("ridge-bench"), " ", here.substr(sizeof(kBench) - 1), target);
  }
  return "";
}

void ExpectOutput(const std::string& command, const std::string& output) {
  bool known = false;
  for (const Expectation& expectation : kExpectations) {
    if (!absl::StrContains(command, expectation.command_part)) continue;
    known = true;
    for (const char* part : expectation.output_parts) {
      EXPECT_TRUE(absl::StrContains(output, part)) << part << "\nis not in what this prints:\n" << command;
    }
  }
  EXPECT_TRUE(known) << "this test does not know what to expect of: " << command;
}

TEST(ReadmeTest, TheCommandsUnderTalkToItWork) {
  const std::string model = Variable("RIDGE_TEST_MODEL"), grpcurl = Variable("RIDGE_TEST_GRPCURL");
  if (model.empty() || grpcurl.empty()) {
    ASSERT_NE(Variable("RIDGE_REQUIRE_TOOLS"), "1") << "RIDGE_TEST_MODEL and RIDGE_TEST_GRPCURL are required";
    GTEST_SKIP() << "RIDGE_TEST_MODEL or RIDGE_TEST_GRPCURL is not set";
  }
  const absl::StatusOr<Server> worker = StartWorker({"--model", model, "--kv-cache-bytes", "256MiB"});
  ASSERT_TRUE(worker.ok()) << worker.status();
  const absl::StatusOr<Server> router = StartRouter({worker->grpc});
  ASSERT_TRUE(router.ok()) << router.status();

  const std::vector<std::string> commands = ReadmeCommands();
  for (const std::string& command : commands) {
    const std::string here = Localised(command, grpcurl, router->grpc);
    ASSERT_FALSE(here.empty()) << "neither grpcurl nor ridge-bench: " << command;
    const auto process = Process::Start({"/bin/sh", "-c", here});
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_EQ((*process)->WaitForExit(kPatience), 0) << here << "\n" << (*process)->Stderr();
    EXPECT_NE((*process)->Stdout(), "") << here;
    ExpectOutput(command, absl::StrCat((*process)->Stdout(), (*process)->Stderr()));
  }
  // The section shows each of them.
  for (const Expectation& expectation : kExpectations) {
    EXPECT_THAT(commands, ::testing::Contains(HasSubstr(expectation.command_part)));
  }
}

}  // namespace
}  // namespace ridge::testing
