#include "common/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "common/logging.h"

namespace ridge {
namespace {

void RaiseAndWait(int signal) {
  InstallTermination();
  HoldTermination();
  kill(getpid(), signal);
  std::exit(WaitForTermination() == signal ? 0 : 1);
}

TEST(TerminationDeathTest, WaitReturnsTheSignal) {
  EXPECT_EXIT(RaiseAndWait(SIGTERM), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(RaiseAndWait(SIGINT), testing::ExitedWithCode(0), "");
}

void RaiseTwice() {
  InitLogging("test", "warning");
  InstallTermination();
  HoldTermination();
  kill(getpid(), SIGTERM);
  WaitForTermination();
  kill(getpid(), SIGTERM);
  pause();
}

TEST(TerminationDeathTest, ASecondSignalEndsTheProcess) {
  EXPECT_EXIT(RaiseTwice(), testing::KilledBySignal(SIGTERM), "signal 15 while draining");
}

void RaiseTwiceWithAFullLog() {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK) != 0) std::exit(2);
  while (write(ends[1], "x", 1) == 1) {
  }
  fcntl(ends[1], F_SETFL, 0);
  dup2(ends[1], STDERR_FILENO);
  RaiseTwice();
}

TEST(TerminationDeathTest, ALogThatNobodyReadsDoesNotKeepItFromEnding) {
  EXPECT_EXIT(RaiseTwiceWithAFullLog(), testing::KilledBySignal(SIGTERM), "");
}

void WaitForASignalWhileStarting(int signal) {
  InstallTermination();
  kill(getpid(), signal);
  pause();  // as a start that hangs
}

TEST(TerminationDeathTest, WhileStartingASignalEndsTheProcess) {
  EXPECT_EXIT(WaitForASignalWhileStarting(SIGTERM), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(WaitForASignalWhileStarting(SIGINT), testing::KilledBySignal(SIGINT), "");
}

void WriteToABrokenPipe() {
  InstallTermination();
  int ends[2];
  if (pipe(ends) != 0) std::exit(2);
  close(ends[0]);
  std::exit(write(ends[1], "x", 1) == -1 ? 0 : 1);
}

TEST(TerminationDeathTest, ABrokenPipeIsAnErrorNotADeath) {
  EXPECT_EXIT(WriteToABrokenPipe(), testing::ExitedWithCode(0), "");
}

TEST(DescriptorLimitTest, TheSoftLimitBecomesTheHardOne) {
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  const rlimit low{100, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const int64_t raised = RaiseDescriptorLimit();
  EXPECT_EQ(raised, static_cast<int64_t>(std::min<rlim_t>(old.rlim_max, 1 << 20)));
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, static_cast<rlim_t>(raised));
  setrlimit(RLIMIT_NOFILE, &old);
}

}  // namespace
}  // namespace ridge
