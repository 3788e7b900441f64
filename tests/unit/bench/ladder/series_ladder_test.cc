// The simulated A10 climbs the ladder as the series' engines did on theirs: the same rank, and every rate at
// which an engine saturates within 20 % (docs/performance.md has the constants and the table).
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "bench/ladder/engine_host.h"
#include "bench/measure/subject.h"
#include "bench/measure/summary.h"
#include "bench/workload/draw.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

struct Published {
  const char* engine;
  double requests_per_second;  // the most that it served
};

// In the series' order. One constant of the card was fitted to `fused`.
constexpr Published kPublished[] = {{"batched", 0.67}, {"continuous", 1.26}, {"paged", 3.90},
                                    {"chunked", 4.08}, {"fused", 4.53},      {"flash", 5.68}};

double MostServed(const std::string& engine, const OpenedModel& model, HostConfig config) {
  // Whole prompts take a step, whatever their number.
  const bool whole = engine == "batched" || engine == "continuous" || engine == "paged";
  if (whole) config.step_tokens = config.max_batch * 4096;
  double most = 0;
  for (double rate : {3.0, 5.0, 7.0, 8.0}) {
    auto host = EngineHost::Open(config, {.engine = engine, .prefix_cache = "off"}, model).value();
    Workload workload = MixedDraw(0, 400);
    SetArrivals({.first_rate = rate, .last_rate = rate}, &workload);
    Prompts prompts = model.MakePrompts("");
    const std::vector<TargetRequest> requests = ToRequests(workload, &prompts).value();
    const OpenSummary summary = Summarise(requests, host->target()->Run(requests, {}).value());
    EXPECT_EQ(summary.served, 400);
    most = std::max(most, summary.served_rate);
  }
  return most;
}

TEST(SeriesLadderTest, SaturatesWhereTheSeriesEnginesDid) {
  HostConfig config;
  config.model = "synthetic:qwen2.5-1.5b";
  config.device = "simulated:a10-series";
  config.max_batch = 32;
  config.max_context = 4096 + 256;
  const auto model = OpenedModel::Open(config).value();
  double below = 0;
  for (const Published& published : kPublished) {
    const double served = MostServed(published.engine, *model, config);
    EXPECT_GE(served, below) << published.engine << " ranks above the one before";
    EXPECT_NEAR(served / published.requests_per_second, 1.0, 0.2) << published.engine;
    below = served;
  }
}

}  // namespace
}  // namespace ridge::bench
