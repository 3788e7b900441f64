#include "common/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace ridge {
namespace {

void RaiseAndWait(int signal) {
  BlockTerminationSignals();
  kill(getpid(), signal);
  std::exit(WaitForTermination() == signal ? 0 : 1);
}

TEST(TerminationDeathTest, WaitReturnsTheSignal) {
  EXPECT_EXIT(RaiseAndWait(SIGTERM), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(RaiseAndWait(SIGINT), testing::ExitedWithCode(0), "");
}

void RaiseTwice() {
  BlockTerminationSignals();
  kill(getpid(), SIGTERM);
  WaitForTermination();
  kill(getpid(), SIGTERM);
  std::exit(0);
}

TEST(TerminationDeathTest, ASecondSignalEndsTheProcess) {
  EXPECT_EXIT(RaiseTwice(), testing::KilledBySignal(SIGTERM), "");
}

void WriteToABrokenPipe() {
  BlockTerminationSignals();
  int ends[2];
  if (pipe(ends) != 0) std::exit(2);
  close(ends[0]);
  std::exit(write(ends[1], "x", 1) == -1 ? 0 : 1);
}

TEST(TerminationDeathTest, ABrokenPipeIsAnErrorNotADeath) {
  EXPECT_EXIT(WriteToABrokenPipe(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ridge
