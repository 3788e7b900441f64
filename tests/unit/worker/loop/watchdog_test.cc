#include "worker/loop/watchdog.h"

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"
#include "worker/loop/engine.h"
#include "worker/loop/engine_metrics.h"

namespace ridge::worker {
namespace {

// Holds back the results of its steps until it is told to go on.
class HangingBackend : public FakeBackend {
 public:
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override {
    hangs.Notify();
    go_on.WaitForNotification();
    return FakeBackend::Collect(ticket);
  }
  absl::Notification hangs;
  absl::Notification go_on;
};

class QuietSink : public TokenSink {
 public:
  bool OnToken(const TokenEvent&) override { return true; }
  void OnEnd(const Outcome&) override { ended.Notify(); }
  absl::Notification ended;
};

// What the watchdog reported last.
class Reports {
 public:
  void Add(bool stalled) {
    absl::MutexLock lock(&mutex_);
    reports_.push_back(stalled);
  }
  bool Become(const std::vector<bool>& expected) const {
    absl::MutexLock lock(&mutex_);
    const auto same = [&] { return reports_ == expected; };
    return mutex_.AwaitWithTimeout(absl::Condition(&same), absl::Seconds(20));
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<bool> reports_;
};

TEST(WatchdogTest, ReportsAnEngineWhoseStepsDoNotEndAndItsRecovery) {
  FakeClock clock;
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  HangingBackend backend;
  ASSERT_TRUE(backend.Reserve(8, {1, 64}).ok());
  const EngineConfig config{
      .num_blocks = 8, .max_running = 1, .step_tokens = 64, .policy = {.launch = LaunchPolicy::kStream}};
  Engine engine(config, &backend, &clock, &metrics);
  Reports reports;
  Watchdog watchdog([&] { return engine.StalledNs(); }, absl::Seconds(60), absl::Milliseconds(1),
                    [&](bool stalled) { reports.Add(stalled); });
  // Nothing to do is no stall, however long.
  clock.AdvanceNs(1'000'000'000'000);
  EXPECT_EQ(engine.StalledNs(), 0);

  auto sink = std::make_shared<QuietSink>();
  SequenceSpec spec;
  spec.prompt = {1, 2, 3};
  engine.Submit(spec, sink);
  backend.hangs.WaitForNotification();
  clock.AdvanceNs(59'999'999'999);
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(reports.Become({}));
  clock.AdvanceNs(1);
  EXPECT_TRUE(reports.Become({true}));

  backend.go_on.Notify();
  sink->ended.WaitForNotification();
  EXPECT_TRUE(reports.Become({true, false}));
  for (int i = 0; i < 10000 && engine.StalledNs() != 0; ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(engine.StalledNs(), 0);
}

}  // namespace
}  // namespace ridge::worker
