#include "bench/command_flags.h"

#include "absl/strings/str_cat.h"
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
  EXPECT_EQ(CheckCommandFlags("overhead", {"admission"}).message(),
            "--admission: is not a flag of overhead but of closed, arrivals, replay");
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

TEST(CommandFlags, AFileHasRequestsAndTimesOfItsOwn) {
  for (const char* file : {"workload", "mooncake", "burstgpt"}) {
    EXPECT_EQ(CheckCommandFlags("arrivals", {file, "draw_seed"}).message(),
              "--draw_seed: needs --rates or --goodput or --cancelled_share");
    EXPECT_EQ(CheckCommandFlags("draw", {file, "burstiness"}).message(),
              "--burstiness: needs --rates or --goodput");
    EXPECT_TRUE(CheckCommandFlags("arrivals", {file, "draw_seed", "burstiness", "rates"}).ok());
  }
  EXPECT_TRUE(CheckCommandFlags("arrivals", {"draw_seed", "burstiness"}).ok());
  EXPECT_EQ(CheckCommandFlags("arrivals", {"burstiness", "in_flight"}).message(),
            "--burstiness: does not go with --in_flight");
  EXPECT_EQ(CheckCommandFlags("arrivals", {"mooncake", "time_scale", "rates"}).message(),
            "--time_scale: does not go with --rates or --in_flight or --goodput");
}

TEST(CommandFlags, WhatOneCommandNeedsAnotherDoesNot) {
  EXPECT_EQ(CheckCommandFlags("closed", {"draw_seed"}).message(), "--draw_seed: needs --mixed");
  EXPECT_TRUE(CheckCommandFlags("closed", {"draw_seed", "mixed"}).ok());
  EXPECT_EQ(CheckCommandFlags("draw", {"source"}).message(), "--source: needs --model");
  EXPECT_TRUE(CheckCommandFlags("serve-load", {"source"}).ok());
  for (const char* flag : {"source", "engine", "device", "threads"}) {
    EXPECT_EQ(CheckCommandFlags("parity", {"a", "b", flag}).message(),
              absl::StrCat("--", flag, ": needs --model"));
  }
}

TEST(CommandFlags, AReplayIsOnAServiceOrOnEngines) {
  for (const char* flag : {"engine", "device", "max_batch", "kv_cache_bytes", "virtual_clock", "threads"}) {
    EXPECT_EQ(
        CheckCommandFlags("replay", {"workload", "target", flag}).message(),
        absl::StrCat("--", flag, ": does not go with --target, which is a service with choices of its own"));
    EXPECT_TRUE(CheckCommandFlags("replay", {"workload", "model", flag}).ok());
  }
  for (const char* flag : {"connections", "called", "cancelled_share", "request_timeout"}) {
    EXPECT_EQ(CheckCommandFlags("replay", {"workload", "model", flag}).message(),
              absl::StrCat("--", flag, ": needs --target"));
    EXPECT_TRUE(CheckCommandFlags("replay", {"workload", "target", "model", flag}).ok());
  }
}

TEST(CommandFlags, HelpShowsACommandsFlagsInTheirOrder) {
  EXPECT_THAT(FlagsOf("roofline"), testing::ElementsAre("model", "card", "records", "out"));
  EXPECT_THAT(FlagsOf("nothing"), testing::IsEmpty());
}

}  // namespace
}  // namespace ridge::bench
