#include "bench/measure/experiment.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Gives every request its first token `ttft_s` after its arrival and one every `gap_s` from then on.
class EvenTarget final : public Target {
 public:
  EvenTarget(double ttft_s, double gap_s) : ttft_s_(ttft_s), gap_s_(gap_s) {}

  absl::StatusOr<std::vector<TargetResult>> Run(absl::Span<const TargetRequest> requests,
                                                const RunLimits&) override {
    sizes.push_back(requests.size());
    last_arrival_s = requests.back().arrival_s;
    leaving = std::count_if(requests.begin(), requests.end(),
                            [](const auto& r) { return r.cancel_after_tokens > 0; });
    std::vector<TargetResult> results;
    for (const TargetRequest& request : requests) {
      TargetResult result;
      result.sent_s = request.arrival_s + late_s;
      result.start_s = request.arrival_s + ttft_s_ / 2;
      for (int32_t i = 0; i < request.max_tokens; ++i) {
        result.token_s.push_back(request.arrival_s + ttft_s_ + gap_s_ * i);
        result.ids.push_back(request.prompt_ids->front() + i);
      }
      result.end_s = result.token_s.back();
      result.end = end;
      result.error = error;
      results.push_back(std::move(result));
    }
    if (is_late_once) late_s = 0;
    return results;
  }

  std::vector<size_t> sizes;  // of the runs
  int64_t leaving = 0;        // clients of the last one
  double last_arrival_s = 0;  // of the last one's requests
  double late_s = 0;
  bool is_late_once = false;
  std::string end = "length", error;

 private:
  const double ttft_s_;
  const double gap_s_;
};

class ExperimentTest : public ::testing::Test {
 protected:
  ExperimentTest() : prompts_(nullptr, "", 100) {
    folder_ = absl::StrCat(::testing::TempDir(), "/experiment_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    context_.engine = "even";
    Open();
  }
  ~ExperimentTest() override { std::filesystem::remove_all(folder_); }

  void Open() {
    records_.reset();  // lets go of the folder
    records_.emplace(*RecordFiles::Open(folder_, context_));
  }
  Subject SubjectOf(Target* target) { return {target, &prompts_, &*records_, 32, {}, "", {}, &progress_}; }

  std::string folder_;
  RunContext context_;
  Prompts prompts_;
  std::optional<RecordFiles> records_;
  std::ostringstream progress_;
};

TEST_F(ExperimentTest, ClosedRunsWarmUpFirstAndGoOnWhereTheyStopped) {
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

TEST_F(ExperimentTest, RunsOfOneWorkloadHaveEquallyManyTokens) {
  EvenTarget target(0.1, 0.01);
  ASSERT_TRUE(RunClosed(SubjectOf(&target), {{UniformDraw(16, 4, 1)}, 0, 1}).ok());
  const absl::Status status =
      RunClosed(SubjectOf(&target), {{UniformDraw(64, 8, 1), UniformDraw(16, 8, 1)}, 0, 5});
  EXPECT_EQ(status.message(), absl::StrCat("--new_tokens: p16-x1 in ", folder_,
                                           " was measured with 4, this run has 8; take another --out"));
  EXPECT_EQ(target.sizes.size(), 1);  // refused before anything was run
}

TEST_F(ExperimentTest, LongRunsAreMadeLessOften) {
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

TEST_F(ExperimentTest, AClosedRunInWhichARequestFailsIsNotRecorded) {
  EvenTarget target(0.1, 0.01);
  target.end = "UNAVAILABLE";
  const absl::Status status = RunClosed(SubjectOf(&target), {{UniformDraw(16, 4, 1)}, 0, 1});
  EXPECT_EQ(status.message(), "request 0 ended with UNAVAILABLE: ");
  Open();
  EXPECT_FALSE(records_->HasRun("p16-x1", 0));
}

TEST_F(ExperimentTest, RatesEndWhereTheTargetFallsBehind) {
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

TEST_F(ExperimentTest, ATerminalIsToldHowLongASweepTakes) {
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

TEST_F(ExperimentTest, APassThatServedNothingFailsAndSaysWhy) {
  EvenTarget target(1.0, 0.1);
  target.end = "UNAVAILABLE";
  target.error = "connection refused";
  const absl::Status status =
      RunPass(SubjectOf(&target), {.workload = UniformDraw(16, 2, 3), .rate = 1}).status();
  EXPECT_EQ(status.message(),
            "none of 3 requests was served: 3 UNAVAILABLE (first: connection refused): the pass is not "
            "recorded");
  EXPECT_THAT(progress_.str(),
              HasSubstr("3 unserved, 0 late; unserved: 3 UNAVAILABLE (first: connection refused)"));
  EXPECT_FALSE(records_->HasPass(1, 0, 0));
}

TEST_F(ExperimentTest, LateSendsInvalidateAPass) {
  EvenTarget target(1.0, 0.1);
  target.late_s = 0.006;
  const absl::Status status =
      RunPass(SubjectOf(&target), {.workload = UniformDraw(16, 2, 3), .rate = 1}).status();
  EXPECT_EQ(status.message(),
            "3 of 3 requests were sent more than 5 ms late: the run measured its client and is not recorded");
  EXPECT_FALSE(records_->HasPass(1, 0, 0));
  EXPECT_EQ(target.sizes.size(), 3);  // it was given two more chances
}

TEST_F(ExperimentTest, APassThatWasLateOnceIsMadeAgain) {
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

TEST_F(ExperimentTest, APassIsNotRunAgain) {
  EvenTarget target(1.0, 0.1);
  PassOptions options{.workload = UniformDraw(16, 2, 3)};
  ASSERT_TRUE(RunConcurrencies(SubjectOf(&target), options, {1, 4}).ok());
  ASSERT_TRUE(RunConcurrencies(SubjectOf(&target), options, {1, 4, 8}).ok());
  EXPECT_EQ(target.sizes.size(), 3);
  EXPECT_THAT(progress_.str(), HasSubstr("8 in flight: served "));
  options.in_flight = 8;
  EXPECT_FALSE(RunPass(SubjectOf(&target), options)->has_value());
}

TEST_F(ExperimentTest, RequestsInFlightComeAtNoTimesOfTheirOwn) {
  EvenTarget target(1.0, 0.1);
  PassOptions options{.workload = UniformDraw(16, 2, 3)};
  for (int i = 0; i < 3; ++i) options.workload.items[i].arrival_s = 10 * i;  // as a frozen workload has them
  ASSERT_TRUE(RunPass(SubjectOf(&target), options).ok());
  EXPECT_EQ(target.last_arrival_s, 20);
  ASSERT_TRUE(RunConcurrencies(SubjectOf(&target), options, {1}).ok());
  EXPECT_EQ(target.last_arrival_s, 0);
}

TEST_F(ExperimentTest, SomeClientsLeave) {
  EvenTarget target(1.0, 0.1);
  const PassOptions options{.workload = UniformDraw(16, 20, 1000), .rate = 10, .cancelled_share = 0.25};
  ASSERT_TRUE(RunPass(SubjectOf(&target), options).ok());
  EXPECT_NEAR(target.leaving, 250, 50);
}

// Serves every rate up to 37 a second at once, and none above within the limit.
class LimitedTarget final : public Target {
 public:
  absl::StatusOr<std::vector<TargetResult>> Run(absl::Span<const TargetRequest> requests,
                                                const RunLimits& limits) override {
    const double rate = static_cast<double>(requests.size()) / requests.back().arrival_s;
    EvenTarget even(rate > 37 ? 0.6 : 0.1, 0.01);
    return even.Run(requests, limits);
  }
};

TEST_F(ExperimentTest, GoodputIsTheHighestRateThatMeetsTheLimits) {
  LimitedTarget target;
  const absl::StatusOr<Goodput> found =
      SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 2, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->offered_rate, 37 / 1.1);
  EXPECT_LT(found->offered_rate, 37 * 1.1);  // the draw's own rate is not exactly the offered one
  EXPECT_NEAR(found->served_rate / found->offered_rate, 0.96, 0.05);
}

TEST_F(ExperimentTest, ASearchSaysWhatEachRateMissed) {
  LimitedTarget target;
  ASSERT_TRUE(SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 32, {}).ok());
  EXPECT_THAT(progress_.str(), HasSubstr("\n32/s meets the limits\n"));
  EXPECT_THAT(progress_.str(), HasSubstr("\n64/s misses: p99 TTFT 600.00 > 500 ms\n"));
}

TEST(MissedLimits, ServedCountsAgainstWhatCame) {
  OpenSummary summary;
  summary.served_rate = 2.5;
  summary.arrival_rate = 3;  // of a nominal 3.5, of which 2.5 were too little
  EXPECT_EQ(MissedLimits(summary, {}), "");
  summary.arrival_rate = 4;
  EXPECT_EQ(MissedLimits(summary, {}), "served 2.500/s are 62.5 % of the 4.000/s that came, less than 80 %");
  summary.itl_s.p99 = 0.0312;
  summary.unserved = 2;
  EXPECT_EQ(
      MissedLimits(summary, {}),
      "2 requests were not served, p99 ITL 31.20 > 25 ms, served 2.500/s are 62.5 % of the 4.000/s that "
      "came, less than 80 %");
}

TEST_F(ExperimentTest, GoodputIsFoundBelowTheFirstRateToo) {
  LimitedTarget target;
  const double rate =
      SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 300, {})->offered_rate;
  EXPECT_GT(rate, 37 / 1.1);
  EXPECT_LT(rate, 37 * 1.1);
}

TEST_F(ExperimentTest, GoodputIsNothingWhereEvenASmallRateIsTooMuch) {
  LimitedTarget target;
  EXPECT_EQ(SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 10000, {})->offered_rate,
            0);
}

}  // namespace
}  // namespace ridge::bench
