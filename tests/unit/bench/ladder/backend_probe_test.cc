#include "bench/ladder/backend_probe.h"

#include "bench/ladder/engine_host.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

HostConfig Config(const std::string& model, const std::string& device) {
  HostConfig config;
  config.model = model;
  config.device = device;
  config.max_batch = 1;
  config.chunk_tokens = 64;
  config.max_context = 512;
  return config;
}

// On the series' card a pass is 1,123 launches of 16.5 us and 3.4 ms besides, all of them the host's.
TEST(BackendProbeTest, MeasuresAPassOfTheSimulatedCard) {
  const HostConfig config = Config("synthetic:qwen2.5-1.5b", "simulated:a10-series");
  const auto model = *OpenedModel::Open(config);
  worker::PolicyNames names;
  names.engine = "cached";
  const auto host = *EngineHost::Open(config, names, *model);
  const absl::StatusOr<PassCost> cost = host->Probe().MeasurePass(256, 2, 5);
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_NEAR(cost->serialized_s, 3.4e-3 + 1123 * 16.5e-6, 1e-4);
  EXPECT_LE(cost->pipelined_s, cost->serialized_s);
  EXPECT_EQ(cost->launches, 1123);
}

TEST(BackendProbeTest, LogitsDoNotDependOnHowThePromptIsCut) {
  const HostConfig whole = Config(RIDGE_TEST_DATA_DIR "/tiny-llama", "cpu");
  HostConfig chunks = whole;
  chunks.chunk_tokens = 3;
  const auto model = *OpenedModel::Open(whole);
  const std::vector<worker::TokenId> tokens = {5, 9, 2, 40, 7, 7, 30, 1, 12, 3};
  std::vector<std::vector<float>> logits;
  for (const HostConfig& config : {whole, chunks}) {
    const auto host = *EngineHost::Open(config, {}, *model);
    BackendProbe probe = host->Probe();
    ASSERT_TRUE(probe.LogitsAfter({4, 4}).ok());  // what was there before does not matter
    logits.push_back(*probe.LogitsAfter(tokens));
    EXPECT_EQ(logits.back().size(), host->info().vocab_size);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(EngineHostTest, RefusesADeviceThatIsNone) {
  for (const char* device : {"foo", "simulate:h200", "h200", "simulated:a11"}) {
    const HostConfig config = Config(RIDGE_TEST_DATA_DIR "/tiny-llama", device);
    const auto model = *OpenedModel::Open(config);
    const absl::Status status = EngineHost::Open(config, {}, *model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << device;
    EXPECT_THAT(status.message(), testing::HasSubstr("--device: ")) << device;
  }
}

}  // namespace
}  // namespace ridge::bench
