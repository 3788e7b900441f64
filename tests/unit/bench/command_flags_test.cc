#include "bench/command_flags.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

TEST(CommandFlags, AFlagOfAnotherCommandIsRefused) {
  EXPECT_TRUE(CheckCommandFlags("closed", {"model", "prompts", "runs"}).ok());
  EXPECT_EQ(CheckCommandFlags("arrivals", {"model", "runs"}).message(),
            "--runs: is not a flag of arrivals but of closed");
  EXPECT_EQ(CheckCommandFlags("serve-load", {"engine"}).message(),
            "--engine: is not a flag of serve-load but of closed, arrivals, replay, overhead, parity");
  EXPECT_EQ(CheckCommandFlags("arrivals", {"cancelled_share"}).message(),
            "--cancelled_share: is not a flag of arrivals but of replay, serve-load");
  EXPECT_TRUE(CheckCommandFlags("ask", {"flagfile"}).ok());  // a library's
}

TEST(CommandFlags, AFlagThatWouldChangeNothingIsRefused) {
  EXPECT_EQ(CheckCommandFlags("arrivals", {"time_scale"}).message(),
            "--time_scale: needs --mooncake or --burstgpt");
  EXPECT_TRUE(CheckCommandFlags("arrivals", {"time_scale", "burstgpt"}).ok());
  EXPECT_EQ(CheckCommandFlags("serve-load", {"ttft_limit", "rates"}).message(),
            "--ttft_limit: needs --goodput");
  EXPECT_EQ(CheckCommandFlags("serve-load", {"goodput", "rates"}).message(),
            "--goodput: does not go with --rates or --in_flight");
  EXPECT_EQ(CheckCommandFlags("arrivals", {"workload", "requests"}).message(),
            "--requests: does not go with --workload");
}

TEST(CommandFlags, HelpShowsACommandsFlagsInTheirOrder) {
  EXPECT_THAT(FlagsOf("roofline"), testing::ElementsAre("model", "card", "records", "out"));
  EXPECT_THAT(FlagsOf("nothing"), testing::IsEmpty());
}

}  // namespace
}  // namespace ridge::bench
