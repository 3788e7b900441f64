#include "bench/records/latency.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;

TEST(Percentile, IsTheNearestRank) {
  const std::vector<double> values = {50, 15, 35, 20, 40};
  EXPECT_EQ(Percentile(values, 5), 15);
  EXPECT_EQ(Percentile(values, 30), 20);
  EXPECT_EQ(Percentile(values, 40), 20);
  EXPECT_EQ(Percentile(values, 50), 35);
  EXPECT_EQ(Percentile(values, 100), 50);
  EXPECT_EQ(Percentile({7}, 95), 7);
}

TEST(Measure, CountsGapsAfterTheFirstToken) {
  const StreamLatency latency = Measure({100, 110, 130, 130});
  EXPECT_EQ(latency.ttft_ms, 100);
  EXPECT_THAT(latency.itl_ms, ElementsAre(10, 20, 0));
  EXPECT_DOUBLE_EQ(latency.tokens_per_second, 100);
}

TEST(Measure, HasNoRateForOneToken) {
  EXPECT_EQ(Measure({5}).tokens_per_second, 0);
  EXPECT_EQ(Measure({}).ttft_ms, 0);
}

}  // namespace
}  // namespace ridge::bench
