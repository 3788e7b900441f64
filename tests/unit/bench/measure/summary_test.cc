#include "bench/measure/summary.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

TargetResult Result(double sent_s, double start_s, std::vector<double> token_s) {
  TargetResult result;
  result.sent_s = sent_s;
  result.start_s = start_s;
  result.end_s = token_s.empty() ? sent_s : token_s.back();
  result.ids.assign(token_s.size(), 7);
  result.token_s = std::move(token_s);
  result.end = "length";
  return result;
}

std::vector<TargetRequest> At(const std::vector<double>& arrivals_s) {
  std::vector<TargetRequest> requests;
  for (double arrival_s : arrivals_s)
    requests.push_back({.prompt_ids = nullptr, .max_tokens = 3, .arrival_s = arrival_s});
  return requests;
}

TEST(Summarise, CountsFromTheScheduledArrival) {
  const OpenSummary summary =
      Summarise(At({1.0, 2.0}), {Result(1.001, 1.2, {1.5, 1.6, 1.8}), Result(2.0, 2.0, {2.5, 3.0})});
  EXPECT_EQ(summary.served, 2);
  EXPECT_DOUBLE_EQ(summary.served_rate,
                   1.0);  // two in the two seconds from the first arrival to the last end
  EXPECT_DOUBLE_EQ(summary.arrival_rate, 1.0);  // one gap of a second
  EXPECT_DOUBLE_EQ(summary.tokens_per_second, 2.5);
  EXPECT_DOUBLE_EQ(summary.ttft_s.p50, 0.5);  // 0.499 from when it was sent
  EXPECT_DOUBLE_EQ(summary.ttft_s.worst, 0.5);
  EXPECT_NEAR(summary.queue_s.worst, 0.2, 1e-12);
  EXPECT_NEAR(summary.itl_s.p50, 0.2, 1e-12);  // of 0.1, 0.2, 0.5
  EXPECT_NEAR(summary.itl_s.p99, 0.5, 1e-12);
  EXPECT_EQ(summary.late, 0);
}

TEST(Summarise, ADisturbedGapIsOneInWhichAnothersPromptWasWorkedOn) {
  // The second request's prompt is worked on from 2.05 to 2.5.
  const OpenSummary summary =
      Summarise(At({1.0, 2.0}), {Result(1, 1, {1.5, 2.0, 2.3, 2.52, 2.6}), Result(2, 2.05, {2.5, 2.6})});
  EXPECT_NEAR(summary.disturbance_s.worst, 0.3,
              1e-12);  // 2.0 to 2.3 and 2.3 to 2.52; not 1.5 to 2.0, not 2.52 on
  EXPECT_NEAR(summary.disturbance_s.p50, 0.22, 1e-12);
  EXPECT_EQ(summary.disturbed_over_150_ms, 2);
}

TEST(Summarise, CountsWhatWasNotServedAndWhatWasLate) {
  TargetResult refused = Result(2, -1, {});
  refused.end = "RESOURCE_EXHAUSTED";
  refused.error = "queue: full";
  const OpenSummary summary = Summarise(At({1.0, 2.0}), {Result(1.006, 1.1, {1.2, 1.3}), refused});
  EXPECT_EQ(summary.served, 1);
  EXPECT_NEAR(summary.served_rate, 1 / 0.3, 1e-9);  // of what was served alone, to its end
  EXPECT_NEAR(summary.tokens_per_second, 2 / 0.3, 1e-9);
  EXPECT_EQ(summary.unserved, 1);
  EXPECT_EQ(summary.late, 1);
  EXPECT_EQ(FailureText(summary), "1 RESOURCE_EXHAUSTED (first: queue: full)");
}

TEST(Summarise, SaysHowOftenAndOfWhatRequestsFailed) {
  std::vector<TargetResult> results(5, Result(-1, -1, {}));
  for (TargetResult& result : results) result.end = "UNAVAILABLE";
  results[0].end = "unsent";
  results[1].error = "connection refused";
  results[2].error = "reset";
  results[4].end = "cancelled";  // as its client was told to
  const OpenSummary summary = Summarise(At({0, 0, 0, 0, 0}), results);
  EXPECT_EQ(summary.unserved, 4);
  EXPECT_EQ(FailureText(summary), "3 UNAVAILABLE (first: connection refused), 1 unsent");
  const nlohmann::ordered_json line = ToJson(summary);
  EXPECT_EQ(line["failures"].dump(), R"([{"end":"UNAVAILABLE","count":3,"first_error":"connection refused"},)"
                                     R"({"end":"unsent","count":1,"first_error":""}])");
}

TEST(Summarise, IsReadAsItIsWritten) {
  TargetResult refused = Result(2, -1, {});
  refused.end = "RESOURCE_EXHAUSTED";
  const nlohmann::ordered_json line = ToJson(Summarise(
      At({1.0, 1.5, 2.0}), {Result(1, 1.1, {1.3, 1.7, 1.9}), Result(1.5, 1.6, {1.8, 2.1}), refused}));
  const absl::StatusOr<OpenSummary> read =
      FromJson(nlohmann::ordered_json::parse(line.dump()));  // as a file has it
  ASSERT_TRUE(read.ok()) << read.status();
  nlohmann::ordered_json again = ToJson(*read);
  again["failures"] = line["failures"];  // which are not read
  EXPECT_EQ(again.dump(), line.dump());
  nlohmann::ordered_json without = line;
  without.erase("arrived_per_s");
  EXPECT_EQ(FromJson(without).status().message(), "arrived_per_s: missing, or not as it is written");
  without = line;
  without["itl_s"]["p99"] = "much";
  EXPECT_EQ(FromJson(without).status().message(), "itl_s: missing, or not as it is written");
}

TEST(SpreadOf, HasNearestRanks) {
  std::vector<double> values;
  for (int i = 200; i > 0; --i) values.push_back(i);
  const Spread spread = SpreadOf(values);
  EXPECT_EQ(spread.p50, 100);
  EXPECT_EQ(spread.p95, 190);
  EXPECT_EQ(spread.p99, 198);
  EXPECT_EQ(spread.worst, 200);
}

TEST(Summarise, OfNothingIsNothing) {
  EXPECT_EQ(Summarise({}, {}).served_rate, 0);
  EXPECT_EQ(SpreadOf({}).p99, 0);
}

}  // namespace
}  // namespace ridge::bench
