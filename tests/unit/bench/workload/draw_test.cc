#include "bench/workload/draw.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

struct Totals {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

Totals SumOfFirst(const Workload& workload, size_t count) {
  Totals totals;
  for (size_t i = 0; i < count; ++i) {
    totals.prompt_tokens += workload.items[i].prompt_tokens;
    totals.output_tokens += workload.items[i].max_tokens;
  }
  return totals;
}

// bench/traces/mixed-draw-400.csv was written by Python: index, prompt tokens, budget, time at one request a
// second.
TEST(MixedDraw, IsThePublishedDrawToTheLastDigit) {
  Workload workload = MixedDraw(0, 400);
  SetArrivals({}, &workload);
  std::ifstream file(RIDGE_SOURCE_DIR "/bench/traces/mixed-draw-400.csv");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  for (const WorkItem& item : workload.items) {
    ASSERT_TRUE(std::getline(file, line));
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    ASSERT_EQ(fields.size(), 4);
    EXPECT_EQ(std::to_string(item.prompt_tokens), fields[1]);
    EXPECT_EQ(std::to_string(item.max_tokens), fields[2]);
    double arrival_s = 0;
    ASSERT_TRUE(absl::SimpleAtod(fields[3], &arrival_s));
    EXPECT_DOUBLE_EQ(item.arrival_s, arrival_s);
  }
  EXPECT_FALSE(std::getline(file, line));
}

TEST(MixedDraw, HasThePublishedTotals) {
  const Workload workload = MixedDraw(0, 400);
  EXPECT_EQ(SumOfFirst(workload, 32).prompt_tokens, 44'048);
  EXPECT_EQ(SumOfFirst(workload, 32).output_tokens, 5'440);
  EXPECT_EQ(SumOfFirst(workload, 64).output_tokens, 9'728);
  EXPECT_EQ(SumOfFirst(workload, 400).prompt_tokens, 387'472);
  EXPECT_EQ(SumOfFirst(workload, 400).output_tokens, 63'040);
}

TEST(SetArrivals, ScalesOneTraceWithTheRate) {
  Workload slow = MixedDraw(0, 400), fast = MixedDraw(0, 400);
  SetArrivals({.first_rate = 1, .last_rate = 1}, &slow);
  SetArrivals({.first_rate = 8, .last_rate = 8}, &fast);
  EXPECT_NEAR(slow.items.back().arrival_s, 419.4, 0.05);
  for (size_t i = 0; i < 400; ++i) EXPECT_DOUBLE_EQ(fast.items[i].arrival_s * 8, slow.items[i].arrival_s);
}

TEST(SetArrivals, RampsFromOneRateToAnother) {
  Workload workload = UniformDraw(16, 64, 10'000);
  SetArrivals({.first_rate = 10, .last_rate = 100, .burstiness = 4}, &workload);
  const auto rate = [&](size_t first, size_t last) {
    return static_cast<double>(last - first) /
           (workload.items[last].arrival_s - workload.items[first].arrival_s);
  };
  EXPECT_NEAR(rate(0, 500), 12, 1.2);
  EXPECT_NEAR(rate(9'499, 9'999), 98, 9.8);
}

TEST(UniformDraw, IsCopiesOfOnePrompt) {
  const Workload workload = UniformDraw(256, 64, 3);
  ASSERT_EQ(workload.items.size(), 3);
  for (const WorkItem& item : workload.items) {
    EXPECT_EQ(item.label, "p256");
    EXPECT_EQ(item.prompt_tokens, 256);
    EXPECT_EQ(item.max_tokens, 64);
    EXPECT_EQ(item.arrival_s, 0);
  }
}

}  // namespace
}  // namespace ridge::bench
