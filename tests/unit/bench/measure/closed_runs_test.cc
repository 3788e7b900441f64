#include "bench/measure/closed_runs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/records/gzip_file.h"
#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/bench/measure/even_target.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ClosedRunsTest = SubjectTest;

TEST_F(ClosedRunsTest, ClosedRunsWarmUpFirstAndGoOnWhereTheyStopped) {
  EvenTarget target(0.1, 0.01);
  ClosedOptions options{{UniformDraw(16, 4, 1), UniformDraw(64, 4, 2)}, 1, 2};
  ASSERT_TRUE(RunClosed(SubjectOf(&target), options).ok());
  EXPECT_THAT(target.sizes, ElementsAre(1, 1, 1, 2, 2, 2));
  EXPECT_THAT(progress_.str(), HasSubstr("[1/6, about "));
  EXPECT_THAT(progress_.str(),
              HasSubstr("p16-x1, run -1: TTFT 100.00 ms, ITL p50 10.000 ms, 30.8 tokens/s in 0.13 s"));
  Open();
  options.runs = 3;
  ASSERT_TRUE(RunClosed(SubjectOf(&target), options).ok());
  EXPECT_THAT(target.sizes, ElementsAre(1, 1, 1, 2, 2, 2, 1, 2));  // the third run of each
  EXPECT_THAT(progress_.str(), HasSubstr("p64-x2: 3 runs are on record and are not made again\n"));
}

TEST_F(ClosedRunsTest, RunsOfOneWorkloadHaveEquallyManyTokens) {
  EvenTarget target(0.1, 0.01);
  ASSERT_TRUE(RunClosed(SubjectOf(&target), {{UniformDraw(16, 4, 1)}, 0, 1}).ok());
  const absl::Status status =
      RunClosed(SubjectOf(&target), {{UniformDraw(64, 8, 1), UniformDraw(16, 8, 1)}, 0, 5});
  EXPECT_EQ(status.message(), absl::StrCat("--new_tokens: p16-x1 in ", folder_,
                                           " was measured with 4, this run has 8; take another --out"));
  EXPECT_EQ(target.sizes.size(), 1);  // refused before anything was run
}

// A mixed batch is not pooled under its first request, nor timed to the first that finishes.
TEST_F(ClosedRunsTest, EverySequenceOfABatchHasItsOwnLabelAndTimes) {
  EvenTarget target(0.1, 0.01);
  Workload workload = UniformDraw(16, 4, 1);
  workload.items.push_back(UniformDraw(64, 8, 1).items.front());
  ASSERT_TRUE(RunClosed(SubjectOf(&target), {{workload}, 0, 1}).ok());
  std::vector<nlohmann::json> rows;
  const std::string text = *ReadGzip(absl::StrCat(folder_, "/runs.jsonl.gz"));
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0]["prompt_label"], "p16");
  EXPECT_EQ(rows[1]["prompt_label"], "p64");
  EXPECT_EQ(rows[0]["total_s"], 0.13);
  EXPECT_EQ(rows[1]["total_s"], 0.17);
  EXPECT_EQ(rows[1]["ttft_s"], 0.1);
  EXPECT_EQ(rows[1]["completion_tokens"], 8);
  EXPECT_EQ(rows[1]["batch_size"], 2);
  EXPECT_EQ(rows[0]["batch_id"], rows[1]["batch_id"]);
  EXPECT_THAT(progress_.str(), HasSubstr(" 70.6 tokens/s in 0.17 s"));  // 12 until the last has ended
}

TEST_F(ClosedRunsTest, LongRunsAreMadeLessOften) {
  EvenTarget target(0.1, 0.01);  // 0.13 s a run
  ClosedOptions options{{UniformDraw(16, 4, 1)}, 2, 5, 0.5};
  ASSERT_TRUE(RunClosed(SubjectOf(&target), options).ok());
  EXPECT_EQ(target.sizes.size(), 4);  // a warm-up took its quarter, three runs the rest
  EXPECT_FALSE(records_->HasRun("p16-x1", -1));
  Open();
  ASSERT_TRUE(RunClosed(SubjectOf(&target), options).ok());
  EXPECT_EQ(target.sizes.size(), 4);
  options = {{UniformDraw(64, 4, 1)}, 2, 5, 0.01};
  ASSERT_TRUE(RunClosed(SubjectOf(&target), options).ok());
  EXPECT_EQ(target.sizes.size(), 6);  // one of each however long they take
  options = {{UniformDraw(256, 4, 2), UniformDraw(256, 4, 3)}, 2, 1, 0, 2};
  ASSERT_TRUE(RunClosed(SubjectOf(&target), options).ok());
  EXPECT_EQ(target.sizes.size(), 10);  // none to warm up three
}

TEST_F(ClosedRunsTest, AClosedRunInWhichARequestFailsIsNotRecorded) {
  EvenTarget target(0.1, 0.01);
  target.end = "UNAVAILABLE";
  const absl::Status status = RunClosed(SubjectOf(&target), {{UniformDraw(16, 4, 1)}, 0, 1});
  EXPECT_EQ(status.message(), "request 0 ended with UNAVAILABLE: ");
  Open();
  EXPECT_FALSE(records_->HasRun("p16-x1", 0));
}

}  // namespace
}  // namespace ridge::bench
