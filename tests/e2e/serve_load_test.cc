// ridge-bench serve-load against real processes: what it prints, records and exits with where requests are
// served, fail, or are given up.

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

using ::testing::HasSubstr;

// Real time passes; requests of 64 to 256 tokens take 0.1 to 0.4 s each.
absl::StatusOr<Server> StartSimulatedWorker() {
  return StartWorker({"--model", "synthetic:qwen2.5-1.5b", "--device", "simulated:h200"});
}

struct Ended {
  int code = -1;
  std::string progress;
};

class ServeLoadTest : public ::testing::Test {
 protected:
  std::unique_ptr<Process> Start(const std::string& target, const std::vector<std::string>& flags) {
    std::vector<std::string> command = {BinaryPath("ridge-bench"), "serve-load", "--target", target, "--out",
                                        directory_.path()};
    command.insert(command.end(), flags.begin(), flags.end());
    return *Process::Start(command);
  }
  static Ended Wait(Process& bench) {
    const int code = bench.WaitForExit(kPatience).value_or(-1);
    return {code, bench.Stderr()};
  }
  Ended Run(const std::string& target, const std::vector<std::string>& flags) {
    return Wait(*Start(target, flags));
  }

  const TemporaryDirectory directory_;
};

TEST_F(ServeLoadTest, ServesThroughTheRouterAndKeepsWhatItMeasured) {
  const absl::StatusOr<Server> worker = StartSimulatedWorker();
  ASSERT_TRUE(worker.ok()) << worker.status();
  const absl::StatusOr<Server> router = StartRouter({worker->grpc});
  ASSERT_TRUE(router.ok()) << router.status();
  const std::vector<std::string> flags = {"--in_flight", "8", "--requests", "16"};
  const Ended first = Run(router->grpc, flags);
  EXPECT_EQ(first.code, 0) << first.progress;
  EXPECT_THAT(first.progress,
              HasSubstr(absl::StrCat("synthetic:qwen2.5-1.5b on simulated: NVIDIA H200 at ", router->grpc)));
  EXPECT_THAT(first.progress, HasSubstr("8 in flight: served "));
  EXPECT_THAT(first.progress, HasSubstr("0 cancelled, 0 unserved, 0 late"));
  const Ended again = Run(router->grpc, flags);
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.progress, HasSubstr("8 in flight: on record, not measured again"));
  const Ended more = Run(router->grpc, {"--in_flight", "8", "--requests", "17"});
  EXPECT_EQ(more.code, 1);
  EXPECT_THAT(more.progress, HasSubstr("--requests: the pass with 8 in flight in "));
  const Ended another = Run(router->grpc, {"--model", "another", "--in_flight", "1", "--requests", "1"});
  EXPECT_EQ(another.code, 1);
  EXPECT_THAT(another.progress, HasSubstr("\"another\""));
}

TEST_F(ServeLoadTest, SaysWithWhichCodeRequestsFailed) {
  absl::StatusOr<Server> worker = StartSimulatedWorker();
  ASSERT_TRUE(worker.ok()) << worker.status();
  const std::unique_ptr<Process> bench = Start(worker->grpc, {"--in_flight", "2", "--requests", "40"});
  ASSERT_TRUE(Eventually([&] {
    const auto page = MetricsPage::Scrape(worker->metrics);
    return page.ok() && page->Sum("ridge_request_success_total") >= 2;
  }));
  worker->process->Signal(SIGKILL);
  const Ended ended = Wait(*bench);
  EXPECT_EQ(ended.code, 0) << ended.progress;  // some were served
  EXPECT_THAT(ended.progress, ::testing::ContainsRegex("unserved: [0-9]+ UNAVAILABLE \\(first: .+\\)"));
}

TEST_F(ServeLoadTest, FailsWhereNothingWasServed) {
  const absl::StatusOr<Server> worker = StartSimulatedWorker();
  ASSERT_TRUE(worker.ok()) << worker.status();
  const Ended late = Run(worker->grpc, {"--in_flight", "4", "--requests", "4", "--request_timeout", "5ms"});
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.progress, HasSubstr("none of 4 requests was served: 4 DEADLINE_EXCEEDED (first: "));
  const Ended nobody = Run("127.0.0.1:1", {"--in_flight", "4", "--requests", "4"});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_THAT(nobody.progress, HasSubstr("UNAVAILABLE: --target: 127.0.0.1:1: "));
}

TEST_F(ServeLoadTest, ClientsThatLeaveAreNoFailures) {
  const absl::StatusOr<Server> worker = StartSimulatedWorker();
  ASSERT_TRUE(worker.ok()) << worker.status();
  const Ended ended = Run(worker->grpc, {"--in_flight", "8", "--requests", "8", "--cancelled_share", "1"});
  EXPECT_EQ(ended.code, 0) << ended.progress;
  // One that wanted to leave after its last token was served.
  EXPECT_THAT(ended.progress, ::testing::ContainsRegex("[78] cancelled, 0 unserved"));
}

}  // namespace
}  // namespace ridge::testing
