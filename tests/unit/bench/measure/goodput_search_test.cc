#include "bench/measure/goodput_search.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/bench/measure/even_target.h"

namespace ridge::bench {
namespace {

using ::testing::HasSubstr;

using GoodputSearchTest = SubjectTest;

// Serves every rate up to 37 a second at once, and none above within the limit.
class LimitedTarget final : public Target {
 public:
  absl::StatusOr<std::vector<TargetResult>> Run(absl::Span<const TargetRequest> requests,
                                                const RunLimits& limits) override {
    if (++runs == breaks_off_at) return absl::UnavailableError("the power is gone");
    const double rate = static_cast<double>(requests.size()) / requests.back().arrival_s;
    EvenTarget even(rate > 37 ? 0.6 : 0.1, 0.01);
    return even.Run(requests, limits);
  }

  int runs = 0;
  int breaks_off_at = 0;
};

TEST_F(GoodputSearchTest, GoodputIsTheHighestRateThatMeetsTheLimits) {
  LimitedTarget target;
  const absl::StatusOr<Goodput> found =
      SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 2, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->offered_rate, 37 / 1.1);
  EXPECT_LT(found->offered_rate, 37 * 1.1);  // the draw's own rate is not exactly the offered one
  EXPECT_NEAR(found->served_rate / found->offered_rate, 0.96, 0.05);
}

TEST_F(GoodputSearchTest, ASearchThatBrokeOffGoesOnWithWhatIsOnRecord) {
  const PassOptions options{.workload = UniformDraw(16, 4, 400)};
  LimitedTarget whole;
  const Goodput expected = *SearchGoodput(SubjectOf(&whole), options, 2, {});
  std::filesystem::remove_all(folder_);
  Open();
  LimitedTarget broken;
  broken.breaks_off_at = 4;
  EXPECT_EQ(SearchGoodput(SubjectOf(&broken), options, 2, {}).status().message(), "the power is gone");
  Open();
  progress_.str("");
  LimitedTarget rest;
  const absl::StatusOr<Goodput> found = SearchGoodput(SubjectOf(&rest), options, 2, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->offered_rate, expected.offered_rate);
  EXPECT_EQ(found->served_rate, expected.served_rate);
  EXPECT_EQ(rest.runs, whole.runs - 3);
  EXPECT_THAT(progress_.str(), HasSubstr("\n8/s: on record, not measured again: served "));
  EXPECT_THAT(progress_.str(), HasSubstr("\n8/s meets the limits\n16/s: served "));

  // Once more, with all on record, and with stricter limits: the passes are judged anew.
  Open();
  EXPECT_EQ(SearchGoodput(SubjectOf(&rest), options, 2, {})->offered_rate, expected.offered_rate);
  EXPECT_EQ(rest.runs, whole.runs - 3);
  EXPECT_EQ(SearchGoodput(SubjectOf(&rest), options, 2, {.ttft_p99_s = 0.05})->offered_rate, 0);
}

TEST_F(GoodputSearchTest, ASearchGoesOnWithPassesOfItsOwnSettingsOnly) {
  LimitedTarget target;
  PassOptions options{.workload = UniformDraw(16, 4, 400)};
  ASSERT_TRUE(SearchGoodput(SubjectOf(&target), options, 32, {}).ok());
  options.workload = UniformDraw(16, 4, 200);
  EXPECT_EQ(SearchGoodput(SubjectOf(&target), options, 32, {}).status().message(),
            absl::StrCat("--requests: the pass at 32/s in ", folder_,
                         " was measured with 400, this run has 200; take another --out"));
}

TEST_F(GoodputSearchTest, APassOfAnOlderVersionWithoutItsFiguresIsNamed) {
  ArrivalRecord record;
  record.rate = 32;
  record.end = "length";
  ASSERT_TRUE(records_->AddPass({record}, {}, {{"served", 1}}).ok());
  LimitedTarget target;
  EXPECT_EQ(
      SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 32, {}).status().message(),
      "--out: the pass at 32/s on record: cancelled: missing, or not as it is written; take another one");
}

TEST_F(GoodputSearchTest, WhatTakesNoTimeMeetsTheHighestRateThatIsAsked) {
  EvenTarget target(1e-9, 1e-9);
  const absl::StatusOr<Goodput> found =
      SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 1, {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->offered_rate, 524288);
}

TEST_F(GoodputSearchTest, ASearchSaysWhatEachRateMissed) {
  LimitedTarget target;
  ASSERT_TRUE(SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 32, {}).ok());
  EXPECT_THAT(progress_.str(), HasSubstr("\n32/s meets the limits\n"));
  EXPECT_THAT(progress_.str(), HasSubstr("\n64/s misses: p99 TTFT 600.00 > 500 ms\n"));
}

TEST(MissedLimits, ServedCountsAgainstWhatCame) {
  OpenSummary summary;
  summary.served = 20;
  summary.served_rate = 2.5;
  summary.arrival_rate = 3;  // of a nominal 3.5, of which 2.5 were too little
  EXPECT_EQ(MissedLimits(summary, {}), "");
  summary.arrival_rate = 4;
  summary.cancelled = 20;  // of whose clients half left as they were told to
  EXPECT_EQ(MissedLimits(summary, {}), "");
  summary.cancelled = 0;
  EXPECT_EQ(MissedLimits(summary, {}), "served 2.500/s are 62.5 % of the 4.000/s that came, less than 80 %");
  summary.itl_s.p99 = 0.0312;
  summary.unserved = 2;
  EXPECT_EQ(
      MissedLimits(summary, {}),
      "2 requests were not served, p99 ITL 31.20 > 25 ms, served 2.500/s are 62.5 % of the 4.000/s that "
      "came, less than 80 %");
}

TEST_F(GoodputSearchTest, GoodputIsFoundBelowTheFirstRateToo) {
  LimitedTarget target;
  const double rate =
      SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 300, {})->offered_rate;
  EXPECT_GT(rate, 37 / 1.1);
  EXPECT_LT(rate, 37 * 1.1);
}

TEST_F(GoodputSearchTest, GoodputIsNothingWhereEvenASmallRateIsTooMuch) {
  LimitedTarget target;
  EXPECT_EQ(SearchGoodput(SubjectOf(&target), {.workload = UniformDraw(16, 4, 400)}, 10000, {})->offered_rate,
            0);
}

}  // namespace
}  // namespace ridge::bench
