#include "common/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ridge {
namespace {

TEST(ClockTest, RealClockGoesForwardInNanoseconds) {
  const int64_t before = RealClock()->NowNs();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_GE(RealClock()->NowNs() - before, 2'000'000);
}

TEST(ClockTest, FakeClockMovesOnlyWhenTold) {
  FakeClock clock;
  const int64_t before = clock.NowNs();
  EXPECT_EQ(clock.NowNs(), before);
  clock.AdvanceNs(250);
  EXPECT_EQ(clock.NowNs(), before + 250);
}

}  // namespace
}  // namespace ridge
