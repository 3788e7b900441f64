#include "bench/measure/closed_runs.h"

#include "absl/strings/str_cat.h"
#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
