#include "bench/workload/trace.h"

#include "bench/records/gzip_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;

constexpr char kMooncake[] =
    R"({"timestamp": 3000, "input_length": 700, "output_length": 20, "hash_ids": [5, 9]}
{"timestamp": 0, "input_length": 513, "output_length": 7, "hash_ids": [5, 6]}

{"timestamp": 3000, "input_length": 30, "output_length": 1, "hash_ids": [7]}
)";

TEST(Mooncake, IsOrderedByTimeAndScaled) {
  const absl::StatusOr<Trace> trace = FromMooncake(kMooncake, "m.jsonl", {.time_scale = 0.5});
  ASSERT_TRUE(trace.ok()) << trace.status();
  const std::vector<WorkItem>& items = trace->workload.items;
  ASSERT_EQ(items.size(), 3);
  EXPECT_EQ(items[0].prompt_tokens, 513);
  EXPECT_EQ(items[0].max_tokens, 7);
  EXPECT_EQ(items[0].arrival_s, 0);
  EXPECT_THAT(items[0].prefix_blocks, ElementsAre(5, 6));
  EXPECT_EQ(items[1].prompt_tokens, 700);  // equal times keep their order
  EXPECT_EQ(items[1].arrival_s, 1.5);
  EXPECT_EQ(items[2].prompt_tokens, 30);
}

TEST(Mooncake, LeavesOutWhatIsTooLongAndCountsIt) {
  const absl::StatusOr<Trace> trace =
      FromMooncake(kMooncake, "m.jsonl", {.most_requests = 1, .most_tokens = 520});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->workload.items.size(), 1);
  const absl::StatusOr<Trace> short_ones = FromMooncake(kMooncake, "m.jsonl", {.most_tokens = 100});
  ASSERT_TRUE(short_ones.ok());
  EXPECT_EQ(short_ones->workload.items.size(), 1);
  EXPECT_EQ(short_ones->too_long, 2);
  EXPECT_EQ(FromMooncake(kMooncake, "m.jsonl", {.most_tokens = 3}).status().message(),
            "m.jsonl: no request is left: 0 failed, 3 have more than 3 tokens");
}

TEST(Mooncake, NamesLineAndFieldOfWhatIsWrong) {
  const auto error = [](const char* text) {
    return std::string(FromMooncake(text, "m.jsonl", {}).status().message());
  };
  EXPECT_EQ(error("{"), "m.jsonl, line 1: not a JSON object");
  EXPECT_EQ(error("\n{\"timestamp\":1,\"input_length\":1}"), "m.jsonl, line 2: output_length: not a number");
  EXPECT_EQ(error("{\"timestamp\":1,\"input_length\":-1,\"output_length\":1}"),
            "m.jsonl, line 1: input_length: -1 tokens are not in 0 to 16777216");
  EXPECT_EQ(error("{\"timestamp\":1,\"input_length\":1,\"output_length\":1e300}"),
            "m.jsonl, line 1: output_length: 1e+300 tokens are not in 0 to 16777216");
  EXPECT_EQ(error("{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1,2]}"),
            "m.jsonl, line 1: hash_ids: 2 blocks for 1 tokens");
  EXPECT_EQ(error(""), "m.jsonl: no requests");
}

// The first release has no session columns, the second one has; failed requests have no answer.
TEST(BurstGpt, ReadsBothHeaders) {
  const absl::StatusOr<Trace> first = FromBurstGpt(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
      "5,ChatGPT,472,18,490,Conversation log\r\n"
      "45,ChatGPT,1087,0,1087,Conversation log\r\n"
      "118,GPT-4,417,276,693,API log\r\n",
      "b.csv", {});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->workload.items.size(), 2);
  EXPECT_EQ(first->failed, 1);
  EXPECT_EQ(first->workload.items[1].prompt_tokens, 417);
  EXPECT_EQ(first->workload.items[1].max_tokens, 276);
  EXPECT_EQ(first->workload.items[1].arrival_s, 113);

  const absl::StatusOr<Trace> second = FromBurstGpt(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "7.5,3,1.25,GPT-4,100,20,120,API log\n",
      "b.csv", {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->workload.items[0].prompt_tokens, 100);
  EXPECT_EQ(second->workload.items[0].max_tokens, 20);
}

TEST(BurstGpt, NamesLineAndFieldOfWhatIsWrong) {
  const auto error = [](const std::string& text) {
    return std::string(FromBurstGpt(text, "b.csv", {}).status().message());
  };
  EXPECT_EQ(error("Timestamp,Model\n"), "b.csv, line 1: no column \"Request tokens\"");
  const std::string header = "Timestamp,Request tokens,Response tokens\n";
  EXPECT_EQ(error(header + "1,2\n"), "b.csv, line 2: 2 fields, the header has 3");
  EXPECT_EQ(error(header + "soon,2,3\n"), "b.csv, line 2: Timestamp: not a number");
  EXPECT_EQ(error(header + "1,two,3\n"), "b.csv, line 2: Request tokens, Response tokens: not integers");
  EXPECT_EQ(error(header), "b.csv: no requests");
}

// tests/golden/traces says what is odd about them.
TEST(Mooncake, ReadsATraceWithTheFormatsQuirks) {
  const std::string path = RIDGE_TEST_DATA_DIR "/traces/mooncake.jsonl";
  const absl::StatusOr<Trace> trace = FromMooncake(*ReadGzip(path), path, {.most_tokens = 32768});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->workload.items.size(), 32);
  EXPECT_EQ(trace->too_long, 8);
  int64_t prompts = 0;
  double before = 0;
  for (const WorkItem& item : trace->workload.items) {
    prompts += item.prompt_tokens;
    EXPECT_GE(item.arrival_s, before);
    before = item.arrival_s;
    EXPECT_EQ(item.prefix_blocks.size(), (item.prompt_tokens + 511) / 512);
  }
  EXPECT_EQ(prompts, 56711);
  EXPECT_LE(before, 27);
}

TEST(BurstGpt, ReadsATraceWithTheFormatsQuirks) {
  const std::string path = RIDGE_TEST_DATA_DIR "/traces/burstgpt.csv";
  const absl::StatusOr<Trace> trace = FromBurstGpt(*ReadGzip(path), path, {.time_scale = 2});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->workload.items.size(), 27);
  EXPECT_EQ(trace->failed, 13);
  int64_t answers = 0;
  for (const WorkItem& item : trace->workload.items) answers += item.max_tokens;
  EXPECT_EQ(answers, 6794);
  EXPECT_EQ(trace->workload.items.back().arrival_s, 2 * (148.5 - 5));
}

}  // namespace
}  // namespace ridge::bench
