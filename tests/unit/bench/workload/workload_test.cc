#include "bench/workload/workload.h"

#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr char kHeader[] = "{\"schema\":\"ridge-workload/1\",\"name\":\"n\",\"origin\":\"o\"}\n";

std::string ErrorOf(const std::string& text) {
  return std::string(FromJsonLines(text, "w.jsonl").status().message());
}

TEST(Workload, SurvivesItsFileToTheLastDigit) {
  Workload workload = MixedDraw(0, 50);
  SetArrivals({.first_rate = 3, .last_rate = 3}, &workload);
  workload.items[7].prompt_tokens = 1000;
  workload.items[7].prefix_blocks = {46, 47};
  const absl::StatusOr<Workload> read = FromJsonLines(ToJsonLines(workload), "w.jsonl");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->name, workload.name);
  EXPECT_EQ(read->origin, workload.origin);
  ASSERT_EQ(read->items.size(), workload.items.size());
  for (size_t i = 0; i < read->items.size(); ++i) {
    EXPECT_EQ(read->items[i].label, workload.items[i].label);
    EXPECT_EQ(read->items[i].prompt_tokens, workload.items[i].prompt_tokens);
    EXPECT_EQ(read->items[i].max_tokens, workload.items[i].max_tokens);
    EXPECT_EQ(read->items[i].arrival_s, workload.items[i].arrival_s);
  }
  EXPECT_THAT(read->items[7].prefix_blocks, ElementsAre(46, 47));
}

TEST(Workload, NamesLineAndFieldOfWhatIsWrong) {
  const std::string good = "{\"label\":\"a\",\"prompt_tokens\":600,\"max_tokens\":1,\"arrival_s\":2}\n";
  EXPECT_EQ(ErrorOf(""), "w.jsonl: no requests");
  EXPECT_EQ(ErrorOf(kHeader), "w.jsonl: no requests");
  EXPECT_EQ(ReadWorkload("/dev/null").status().message(), "/dev/null: not a regular file");
  EXPECT_EQ(ErrorOf("[]\n"), "w.jsonl, line 1: not a JSON object");
  EXPECT_EQ(ErrorOf("{\"schema\":\"x\",\"name\":\"\",\"origin\":\"\"}"),
            "w.jsonl, line 1: schema: \"x\" is not \"ridge-workload/1\"");
  EXPECT_EQ(ErrorOf(std::string(kHeader) + "{\"label\":\"a\"}"), "w.jsonl, line 2: prompt_tokens: missing");
  EXPECT_EQ(ErrorOf(kHeader + good + "{\"label\":1}"), "w.jsonl, line 3: label: not a string");
  EXPECT_THAT(ErrorOf(std::string(kHeader) +
                      "{\"label\":\"a\",\"prompt_tokens\":0,\"max_tokens\":1,\"arrival_s\":0}"),
              StartsWith("w.jsonl, line 2: prompt_tokens: 0 is not in 1 to "));
  EXPECT_EQ(
      ErrorOf(kHeader + good + "{\"label\":\"a\",\"prompt_tokens\":6,\"max_tokens\":1,\"arrival_s\":1}"),
      "w.jsonl, line 3: arrival_s: earlier than that of the line before");
  EXPECT_EQ(ErrorOf(std::string(kHeader) + "{\"label\":\"a\",\"prompt_tokens\":600,\"max_tokens\":1,"
                                           "\"arrival_s\":0,\"prefix_blocks\":[1,2,3]}"),
            "w.jsonl, line 2: prefix_blocks: more than 600 tokens can have");
}

TEST(Workload, AFileThatWasCutAtTheEndOfALineIsRefused) {
  std::string text = ToJsonLines(UniformDraw(16, 4, 20));
  for (int line = 0; line < 15; ++line) text.resize(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_EQ(ErrorOf(text), "w.jsonl: has 5 of the 20 requests that its first line names");
}

TEST(Workload, NamesAFileThatIsNotThere) {
  EXPECT_EQ(ReadWorkload("/nowhere/w.jsonl").status().message(),
            "/nowhere/w.jsonl: cannot open: No such file or directory");
  EXPECT_EQ(WriteWorkload(UniformDraw(1, 1, 1), "/nowhere/w.jsonl").message(),
            "/nowhere/w.jsonl: cannot be written: No such file or directory");
  EXPECT_EQ(WriteWorkload(UniformDraw(1, 1, 1), "/dev/full").message(),
            "/dev/full: cannot be written: No space left on device");
}

}  // namespace
}  // namespace ridge::bench
