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

void LogAForgery() {
  InitLogging("ridge-test", "info");
  LogInfo("request {} ends",
          "a\n2026-01-01T00:00:00.000Z error ridge-test: forged\r\x1b[31m\x7f \u009b caf\u00e9");
  std::exit(0);
}

TEST(LoggingDeathTest, ALineStaysALineWhateverIsPutIntoIt) {
  EXPECT_EXIT(LogAForgery(), testing::ExitedWithCode(0),
              "^[^\n]* info ridge-test: request a.n2026-01-01T00:00:00.000Z error ridge-test: "
              "forged.x0d.x1b.31m.x7f .xc2.x9b caf\u00e9 ends\n$");
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
