#include "common/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace ridge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsRegistryTest, TheSameNameAndLabelsAreTheSameInstrument) {
  MetricsRegistry registry;
  prometheus::Counter& stop = registry.Counter("requests_total", "Requests.", {{"reason", "stop"}});
  EXPECT_EQ(&stop, &registry.Counter("requests_total", "Requests.", {{"reason", "stop"}}));
  EXPECT_NE(&stop, &registry.Counter("requests_total", "Requests.", {{"reason", "length"}}));
  prometheus::Histogram& seconds = registry.Histogram("seconds", "Seconds.", {1, 2});
  EXPECT_EQ(&seconds, &registry.Histogram("seconds", "Seconds.", {1, 2}));
}

TEST(MetricsRegistryTest, TextIsPrometheusFormat) {
  MetricsRegistry registry;
  registry.Counter("requests_total", "Requests.", {{"reason", "stop"}}).Increment(3);
  registry.Gauge("running", "Running now.").Set(2);
  prometheus::Histogram& rows = registry.Histogram("rows", "Rows.", {1, 4});
  rows.Observe(1);
  rows.Observe(3);
  rows.Observe(9);
  EXPECT_THAT(registry.Text(),
              AllOf(HasSubstr("# HELP requests_total Requests.\n# TYPE requests_total counter\n"
                              "requests_total{reason=\"stop\"} 3\n"),
                    HasSubstr("# TYPE running gauge\nrunning 2\n"),
                    HasSubstr("# TYPE rows histogram\nrows_count 3\nrows_sum 13\nrows_bucket{le=\"1\"} 1\n"
                              "rows_bucket{le=\"4\"} 2\nrows_bucket{le=\"+Inf\"} 3\n")));
}

TEST(MetricsRegistryTest, CallbackCountersAreReadAtEachScrape) {
  MetricsRegistry registry;
  double total = 3;
  registry.CounterCallback("faults_total", "Faults.", {{"pool", "kv"}}, [&] { return total; });
  EXPECT_THAT(registry.Text(),
              AllOf(HasSubstr("# TYPE faults_total counter\n"), HasSubstr("faults_total{pool=\"kv\"} 3\n")));
  total = 5;
  EXPECT_THAT(registry.Text(), AllOf(HasSubstr("faults_total{pool=\"kv\"} 5\n"), Not(HasSubstr("} 3\n"))));
}

TEST(MetricsRegistryTest, ThreadsMayCountAndScrapeAtOnce) {
  MetricsRegistry registry;
  const auto count = [&] {
    for (int i = 0; i < 1000; ++i) registry.Counter("events_total", "Events.").Increment();
  };
  std::thread first(count), second(count);
  for (int i = 0; i < 20; ++i) registry.Text();
  first.join();
  second.join();
  EXPECT_THAT(registry.Text(), HasSubstr("events_total 2000\n"));
}

TEST(MetricsRegistryTest, BucketBoundsAscendOverTheirRanges) {
  for (const MetricBuckets& bounds : {LatencyBuckets(), StepBuckets(), CountBuckets()}) {
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
    EXPECT_EQ(std::adjacent_find(bounds.begin(), bounds.end()), bounds.end());
  }
  EXPECT_EQ(LatencyBuckets().front(), 0.001);
  EXPECT_EQ(LatencyBuckets().back(), 120);
  EXPECT_EQ(StepBuckets().front(), 0.00005);
  EXPECT_EQ(StepBuckets().back(), 10);
  EXPECT_EQ(CountBuckets().front(), 1);
  EXPECT_EQ(CountBuckets().back(), 8192);
  EXPECT_EQ(CountBuckets().size(), 14u);
}

}  // namespace
}  // namespace ridge
