// What a request gets depends on the request alone: the whole engine on the CPU backend, under settings and
// company that must not matter, bit for bit.
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/loop/engine_core.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

constexpr int32_t kNumBlocks = 600;
constexpr int32_t kContext = 300;  // no request needs more

struct Setting {
  const char* name;
  int32_t max_running, step_tokens, chunk_tokens;
  EnginePolicy policy;
  int threads;
  uint32_t order;      // seed of the order of arrival; 0: as they stand
  bool one_at_a_time;  // each request alone in the engine
};

// A token and the bits of its log-probability.
using Generated = std::vector<std::pair<TokenId, uint32_t>>;

std::vector<SequenceSpec> Requests(int32_t vocab_size) {
  std::mt19937 random(99);
  std::vector<SequenceSpec> requests;
  for (int i = 0; i < 64; ++i) {
    SequenceSpec spec;
    const int32_t prompt_tokens =
        i % 8 == 0 ? 100 + static_cast<int32_t>(random() % 150) : 1 + static_cast<int32_t>(random() % 40);
    for (int32_t j = 0; j < prompt_tokens; ++j)
      spec.prompt.push_back(static_cast<TokenId>(random() % vocab_size));
    spec.max_tokens = 1 + static_cast<int32_t>(random() % 24);
    spec.sampling.logprobs = true;
    spec.sampling.seed = random();
    switch (i % 4) {
      case 0:
        spec.sampling.temperature = 0;
        break;
      case 1:
        spec.sampling.temperature = 0.8f;
        break;
      case 2:
        spec.sampling.top_k = 20;
        spec.sampling.top_p = 0.9f;
        break;
      default:
        spec.sampling.min_p = 0.05f;
        spec.stop_ids = {static_cast<TokenId>(random() % vocab_size)};
    }
    requests.push_back(std::move(spec));
  }
  return requests;
}

std::vector<Generated> GenerateAll(const WeightSource& source, const Setting& setting) {
  std::unique_ptr<CpuBackend> backend = CpuBackend::Create(source, {.threads = setting.threads}).value();
  EXPECT_TRUE(backend->Reserve(kNumBlocks, {setting.max_running, setting.step_tokens}).ok());
  FakeClock clock;
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  const std::vector<SequenceSpec> requests = Requests(source.config().vocab_size);
  std::vector<Generated> generated(requests.size());
  EngineCore core({.num_blocks = kNumBlocks,
                   .max_running = setting.max_running,
                   .step_tokens = setting.step_tokens,
                   .chunk_tokens = setting.chunk_tokens,
                   .policy = setting.policy,
                   .max_context = kContext},
                  backend.get(), &clock, &metrics, [&](std::vector<OutputItem> items) {
                    for (const OutputItem& item : items) {
                      if (!item.has_token) continue;
                      generated[item.stream->id].emplace_back(item.token.id,
                                                              std::bit_cast<uint32_t>(item.token.logprob));
                    }
                  });
  const auto run_to_end = [&] {
    while (core.RunOnce().value()) {
    }
  };

  std::vector<size_t> order(requests.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(setting.order);
  if (setting.order != 0) std::shuffle(order.begin(), order.end(), random);
  for (size_t i : order) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = i;
    sequence->spec = requests[i];
    sequence->output = std::make_shared<OutputStream>();
    sequence->output->id = i;
    core.Add(std::move(sequence));
    if (setting.one_at_a_time) run_to_end();
    // Arrivals in the middle of the others' work.
    for (uint32_t steps = setting.order == 0 ? 0 : random() % 3; steps > 0; --steps) core.RunOnce().value();
  }
  run_to_end();
  return generated;
}

class EngineInvariance : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineInvariance, TokensAndLogprobsDependOnTheRequestAlone) {
  const std::string path = std::string(RIDGE_TEST_DATA_DIR) + "/" + GetParam();
  const std::unique_ptr<WeightSource> source = OpenModel(path).value();
  const EnginePolicy ridge;
  const EnginePolicy stream{.launch = LaunchPolicy::kStream};
  const std::vector<Generated> alone = GenerateAll(*source, {"alone", 1, 512, 512, stream, 1, 0, true});
  for (const Generated& tokens : alone) ASSERT_FALSE(tokens.empty());

  std::vector<Setting> settings = {{"three at once", 3, 512, 512, ridge, 2, 0, false},
                                   {"64 at once", 64, 512, 512, ridge, 2, 0, false},
                                   {"chunks of 1", 64, 128, 1, ridge, 2, 0, false},
                                   {"chunks of 7", 64, 128, 7, ridge, 2, 5, false},
                                   {"chunks of 64", 64, 128, 64, ridge, 1, 0, false},
                                   {"another order", 64, 512, 512, ridge, 2, 7, false},
                                   {"a small budget", 16, 17, 17, ridge, 2, 8, false},
                                   {"one step at a time", 64, 512, 512, stream, 2, 9, false}};
  for (const std::string& preset : PresetNames())
    settings.push_back({preset.c_str(), 8, 512, 64, PresetPolicy(preset), 2, 3, false});
  for (const Setting& setting : settings) {
    const std::vector<Generated> together = GenerateAll(*source, setting);
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_EQ(together[i], alone[i]) << setting.name << ", request " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineInvariance, ::testing::Values("tiny-llama", "tiny-qwen2"));

}  // namespace
}  // namespace ridge::worker
