#include "bench/measure/passes.h"

#include "absl/strings/str_cat.h"
#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/bench/measure/even_target.h"

namespace ridge::bench {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using PassesTest = SubjectTest;

TEST_F(PassesTest, RatesEndWhereTheTargetFallsBehind) {
  EvenTarget target(1.0, 0.1);
  const PassOptions options{.workload = UniformDraw(16, 11, 50)};
  ASSERT_TRUE(RunRates(SubjectOf(&target), options, {1, 2, 1000, 2000}, 0.8).ok());
  EXPECT_THAT(target.sizes, ElementsAre(50, 50, 50));  // 50 in 2 s are not 1,000 a second
  Open();
  EXPECT_TRUE(records_->HasPass(1, 0, 0));
  EXPECT_TRUE(records_->HasPass(1000, 0, 0));
  EXPECT_FALSE(records_->HasPass(2000, 0, 0));
  ASSERT_TRUE(RunRates(SubjectOf(&target), options, {1, 2, 1000, 2000}, 0.8).ok());
  EXPECT_EQ(target.sizes.size(), 3);  // a sweep that ended has ended
  EXPECT_THAT(progress_.str(),
              ContainsRegex("the sweep ends at 1000/s: served 2[0-9.]+/s are 2[.][0-9] % of the "
                            "[0-9.]+/s that came, less than 80 %\n"));
  EXPECT_THAT(progress_.str(), HasSubstr("\n1/s: on record, not measured again: served "));
  const PassOptions fewer{.workload = UniformDraw(16, 11, 5)};
  EXPECT_EQ(RunRates(SubjectOf(&target), fewer, {1}, 0).message(),
            absl::StrCat("--requests: the pass at 1/s in ", folder_,
                         " was measured with 50, this run has 5; take another --out"));
}

TEST_F(PassesTest, ATerminalIsToldHowLongASweepTakes) {
  EvenTarget target(1.0, 0.1);
  Subject subject = SubjectOf(&target);
  const PassOptions options{.workload = UniformDraw(16, 2, 60)};
  ASSERT_TRUE(RunRates(subject, options, {2}, 0).ok());
  EXPECT_EQ(progress_.str().find("left"), std::string::npos);
  subject.on_terminal = true;
  ASSERT_TRUE(RunRates(subject, options, {1, 2, 4}, 0).ok());
  EXPECT_THAT(progress_.str(), HasSubstr("[1/3, at least 1m15s left] 1/s: 60 requests\n"));
  EXPECT_THAT(progress_.str(), HasSubstr("[3/3, at least 15s left] 4/s: 60 requests\n"));
}

TEST_F(PassesTest, APassThatServedNothingFailsAndSaysWhy) {
  EvenTarget target(1.0, 0.1);
  target.end = "UNAVAILABLE";
  target.error = "connection refused";
  const absl::Status status = RunPass(SubjectOf(&target), {.workload = UniformDraw(16, 2, 3), .rate = 1});
  EXPECT_EQ(status.message(),
            "none of 3 requests was served: 3 UNAVAILABLE (first: connection refused): the pass is not "
            "recorded");
  EXPECT_THAT(progress_.str(),
              HasSubstr("3 unserved, 0 late; unserved: 3 UNAVAILABLE (first: connection refused)"));
  EXPECT_FALSE(records_->HasPass(1, 0, 0));
}

TEST_F(PassesTest, LateSendsInvalidateAPass) {
  EvenTarget target(1.0, 0.1);
  target.late_s = 0.006;
  const absl::Status status = RunPass(SubjectOf(&target), {.workload = UniformDraw(16, 2, 3), .rate = 1});
  EXPECT_EQ(status.message(),
            "3 of 3 requests were sent more than 5 ms late: the run measured its client and is not recorded");
  EXPECT_FALSE(records_->HasPass(1, 0, 0));
  EXPECT_EQ(target.sizes.size(), 3);  // it was given two more chances
}

TEST_F(PassesTest, APassThatWasLateOnceIsMadeAgain) {
  EvenTarget target(1.0, 0.1);
  target.late_s = 0.006;
  target.is_late_once = true;
  ASSERT_TRUE(RunPass(SubjectOf(&target), {.workload = UniformDraw(16, 2, 3), .rate = 1}).ok());
  EXPECT_EQ(target.sizes.size(), 2);
  EXPECT_THAT(progress_.str(),
              HasSubstr("3 of 3 requests were sent more than 5 ms late: the run measured its "
                        "client and is not recorded, but made again\n"));
  EXPECT_TRUE(records_->HasPass(1, 0, 0));
}

TEST_F(PassesTest, APassIsNotRunAgain) {
  EvenTarget target(1.0, 0.1);
  PassOptions options{.workload = UniformDraw(16, 2, 3)};
  ASSERT_TRUE(RunConcurrencies(SubjectOf(&target), options, {1, 4}).ok());
  ASSERT_TRUE(RunConcurrencies(SubjectOf(&target), options, {1, 4, 8}).ok());
  EXPECT_EQ(target.sizes.size(), 3);
  EXPECT_THAT(progress_.str(), HasSubstr("8 in flight: served "));
  options.in_flight = 8;
  ASSERT_TRUE(RunPass(SubjectOf(&target), options).ok());
  EXPECT_EQ(target.sizes.size(), 3);
  EXPECT_THAT(progress_.str(), HasSubstr("8 in flight: on record, not measured again: served "));
}

TEST_F(PassesTest, RequestsInFlightComeAtNoTimesOfTheirOwn) {
  EvenTarget target(1.0, 0.1);
  PassOptions options{.workload = UniformDraw(16, 2, 3)};
  for (int i = 0; i < 3; ++i) options.workload.items[i].arrival_s = 10 * i;  // as a frozen workload has them
  ASSERT_TRUE(RunPass(SubjectOf(&target), options).ok());
  EXPECT_EQ(target.last_arrival_s, 20);
  ASSERT_TRUE(RunConcurrencies(SubjectOf(&target), options, {1}).ok());
  EXPECT_EQ(target.last_arrival_s, 0);
}

TEST_F(PassesTest, SomeClientsLeave) {
  EvenTarget target(1.0, 0.1);
  const PassOptions options{.workload = UniformDraw(16, 20, 1000), .rate = 10, .cancelled_share = 0.25};
  ASSERT_TRUE(RunPass(SubjectOf(&target), options).ok());
  EXPECT_NEAR(target.leaving, 250, 50);
}

}  // namespace
}  // namespace ridge::bench
