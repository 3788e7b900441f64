// Decode steps of few rows by one kernel for all layers: the bits of kernels of their own, which the other
// tests hold to those of every number of rows.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/decode_layers.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

constexpr int32_t kNumBlocks = 512;
constexpr int32_t kSlots = 8;
constexpr int32_t kRows = kernels::cuda::kMaxDecodeLayersRows;

struct Shape {
  const char* name;
  ModelConfig config;
};

ModelConfig Named(const char* name, int32_t layers) {
  ModelConfig config = OpenModel(std::string("synthetic:") + name).value()->config();
  config.num_layers = layers;
  config.vocab_size = 1024;
  config.context_length = 2048;
  return config;
}

// Heads of 64, no bias, an odd number of layers.
ModelConfig SmallHeads() {
  ModelConfig config = Named("qwen2.5-1.5b", 3);
  config.num_heads = 24;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.qkv_bias = false;
  return config;
}

// A KV head of eight query heads, chunks of other lengths.
ModelConfig OneKvHead() {
  ModelConfig config = Named("qwen2.5-1.5b", 2);
  config.hidden_size = 1280;
  config.num_heads = 8;
  config.num_kv_heads = 1;
  config.mlp_size = 7680;
  return config;
}

// So small that most blocks have no tile of most matrices, and for sanitizers.
ModelConfig FewTiles() {
  ModelConfig config = Named("qwen2.5-1.5b", 2);
  config.hidden_size = 256;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.mlp_size = 768;
  return config;
}

class DecodeLayersTest : public testing::TestWithParam<Shape> {};

TEST_P(DecodeLayersTest, GivesTheBitsOfKernelsOfTheirOwn) {
  const SyntheticSource source(GetParam().config, 5);
  std::unique_ptr<CudaBackend> backends[2];
  std::vector<StepDriver> drivers;
  for (const bool one_kernel : {false, true}) {
    backends[one_kernel] = CudaBackend::Create(source, {.decode_layers = one_kernel}).value();
    ASSERT_TRUE(backends[one_kernel]->Reserve(kNumBlocks, {.max_slots = kSlots, .max_step_rows = 1100}).ok());
    drivers.emplace_back(backends[one_kernel].get(), kNumBlocks);
  }
  // Contexts that begin and end blocks, tiles and chunks; one of five chunks.
  const int32_t contexts[kSlots] = {1, 15, 63, 254, 255, 256, 700, 1022};
  std::mt19937 random(3);
  for (SlotId slot = 0; slot < kSlots; ++slot) {
    std::vector<TokenId> prompt(static_cast<size_t>(contexts[slot]));
    for (TokenId& token : prompt)
      token = static_cast<TokenId>(random() % static_cast<uint32_t>(source.config().vocab_size));
    for (StepDriver& driver : drivers) {
      driver.Attach(slot, {.temperature = slot % 2 == 0 ? 0.0f : 0.8f, .seed = 9, .logprobs = slot % 3 == 0});
      driver.AddRows(slot, prompt, 1);
      driver.Run();
    }
  }
  // On the stream, with logits, and in graphs, where 3 rows are padded.
  for (int32_t step = 0; step < 64; ++step) {
    const int32_t rows = step / 2 % kRows + 1;
    const bool logits = step % 2 == 0;
    StepResult results[2];
    for (size_t i = 0; i < 2; ++i) {
      for (SlotId row = 0; row < rows; ++row) drivers[i].AddDecodeRow((row * 3 + step) % kSlots);
      results[i] = drivers[i].Run(logits);
    }
    ASSERT_TRUE(results[0].logits == results[1].logits) << rows << " rows, step " << step;
    ASSERT_EQ(results[0].outputs.size(), results[1].outputs.size());
    for (size_t i = 0; i < results[0].outputs.size(); ++i) {
      ASSERT_EQ(results[0].outputs[i].token, results[1].outputs[i].token) << rows << " rows, step " << step;
      ASSERT_EQ(results[0].outputs[i].logprob, results[1].outputs[i].logprob)
          << rows << " rows, step " << step;
    }
  }
  EXPECT_EQ(backends[0]->saturations(), backends[1]->saturations());
}

INSTANTIATE_TEST_SUITE_P(Models, DecodeLayersTest,
                         testing::Values(Shape{"Qwen1B", Named("qwen2.5-1.5b", 2)},
                                         Shape{"SmallHeads", SmallHeads()}, Shape{"OneKvHead", OneKvHead()},
                                         Shape{"FewTiles", FewTiles()}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ridge::worker
