#include "common/logging.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace ridge {
namespace {

// The default logger belongs to the process, so what is written is looked at from outside of a child.
void LogAtEachLevel(absl::string_view level) {
  if (!InitLogging("ridge-test", level)) std::exit(1);
  LogDebug("blocks {}", 1);
  LogInfo("blocks {}", 2);
  LogWarning("blocks {}", 3);
  LogError("blocks {}", 4);
  std::exit(0);
}

TEST(LoggingDeathTest, LinesCarryUtcTimeLevelProgramAndText) {
  EXPECT_EXIT(LogAtEachLevel("info"), testing::ExitedWithCode(0),
              "^[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+[.][0-9]+Z info ridge-test: blocks 2\n");
}

TEST(LoggingDeathTest, LinesBelowTheLevelAreLeftOut) {
  EXPECT_EXIT(LogAtEachLevel("error"), testing::ExitedWithCode(0),
              "^[0-9TZ:.-]+ error ridge-test: blocks 4\n$");
  EXPECT_EXIT(LogAtEachLevel("debug"), testing::ExitedWithCode(0),
              "debug [^\n]*1\n.*info [^\n]*2\n.*warning [^\n]*3\n.*error [^\n]*4\n");
}

void LogFromGrpc(absl::string_view level) {
  InitLogging("ridge-test", level);
  grpc_init();  // before it, gRPC logs nothing
  gpr_log(GPR_ERROR, "socket %d", 5);
  LogError("last");
  std::exit(0);
}

TEST(LoggingDeathTest, LinesOfGrpcAreForDebugging) {
  EXPECT_EXIT(LogFromGrpc("info"), testing::ExitedWithCode(0), "^[^\n]*: last\n$");
  EXPECT_EXIT(LogFromGrpc("debug"), testing::ExitedWithCode(0),
              "debug ridge-test: grpc: socket 5\n.*: last\n$");
}

TEST(LoggingTest, RefusesAnUnknownLevel) {
  EXPECT_FALSE(InitLogging("ridge-test", "loud"));
  EXPECT_FALSE(InitLogging("ridge-test", ""));
}

}  // namespace
}  // namespace ridge
