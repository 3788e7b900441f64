#include "worker/backend/simulated/card.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kText[] =
    "# a comment\n"
    "device A card of ours  # and another\n"
    "memory_bytes 24e9\nweight_bytes_per_second 5e11\nflops_per_second 4.5e13\n"
    "prefill_attention_flops 1\nattention_bytes_per_second 2\none_pass_transfers 3\nrectangle_transfers "
    "3\nsplit_transfers 1\nstep_us 4\n"
    "launches_per_layer 5\nlaunches_per_step 6\nlaunch_us 16.5\nreplay_launch_us 0\nstream_launch_us 2\n"
    "walk_bytes_per_second 0\n";

std::string Message(const std::string& text) {
  const absl::Status status = ParseCard(text, "x.txt").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CardTest, ReadsEveryKey) {
  const SimulatedCard card = ParseCard(kText, "x.txt").value();
  EXPECT_EQ(card.device, "A card of ours");
  EXPECT_EQ(card.memory_bytes, 24e9);
  EXPECT_EQ(card.flops_per_second, 4.5e13);
  EXPECT_EQ(card.launches_per_layer, 5);
  EXPECT_EQ(card.launch_us, 16.5);
  EXPECT_EQ(card.replay_launch_us, 0);
  EXPECT_EQ(card.stream_launch_us, 2);
}

TEST(CardTest, SaysWhichLineAndKeyAreWrong) {
  EXPECT_EQ(Message(absl::StrReplaceAll(kText, {{"16.5", "fast"}})),
            "x.txt: line 14: launch_us: \"fast\" is not a number of 0 or more");
  EXPECT_EQ(Message(absl::StrReplaceAll(kText, {{"16.5", "-1"}})),
            "x.txt: line 14: launch_us: \"-1\" is not a number of 0 or more");
  EXPECT_EQ(Message(absl::StrReplaceAll(kText, {{"16.5", "inf"}})),
            "x.txt: line 14: launch_us: \"inf\" is not a number of 0 or more");
  EXPECT_EQ(Message(absl::StrReplaceAll(kText, {{"step_us 4", "step_us"}})),
            "x.txt: line 11: step_us: no value");
  EXPECT_EQ(Message(absl::StrReplaceAll(kText, {{"step_us", "steps_us"}})),
            "x.txt: line 11: steps_us: unknown key");
  EXPECT_EQ(Message(absl::StrCat(kText, "step_us 4\n")), "x.txt: line 18: step_us: given twice");
  EXPECT_EQ(Message("device x\n# nothing else\n").substr(0, 35), "x.txt: missing: attention_bytes_per");
}

TEST(CardTest, EveryBuiltInCardIsWhole) {
  for (const char* name : {"a10", "a10-series", "h200", "zero"}) {
    EXPECT_TRUE(LoadCard(name).ok()) << LoadCard(name).status();
  }
  EXPECT_EQ(LoadCard("a11").status().message(),
            "no card \"a11\"; there is: a10-series, a10, h200, zero; or a file's path");
}

TEST(CardTest, ReadsAFileByItsPath) {
  const std::string path = testing::TempDir() + "/card.txt";
  std::ofstream(path) << kText;
  EXPECT_EQ(LoadCard(path).value().step_us, 4);
  EXPECT_THAT(LoadCard("./not/there.txt").status().message(), HasSubstr("./not/there.txt: cannot open"));
}

}  // namespace
}  // namespace ridge::worker
