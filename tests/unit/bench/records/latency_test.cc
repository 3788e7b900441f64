#include "bench/records/latency.h"

#include "absl/strings/numbers.h"
#include "bench/records/gzip_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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

// tests/golden/percentiles has the command.
TEST(Percentile, IsThatOfNumpy) {
  const auto cases = nlohmann::json::parse(*ReadGzip(RIDGE_TEST_DATA_DIR "/percentiles/percentiles.json"));
  ASSERT_EQ(cases.size(), 8);
  for (const auto& set : cases) {
    const auto values = set["values"].get<std::vector<double>>();
    for (const auto& [percent, expected] : set["percentiles"].items()) {
      double number = 0;
      ASSERT_TRUE(absl::SimpleAtod(percent, &number));
      EXPECT_EQ(Percentile(values, number), expected.get<double>()) << percent << " of " << values.size();
    }
  }
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
