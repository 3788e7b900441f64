// The memory of a card under a whole engine.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/golden_file.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "tests/unit/worker/loop/same_tokens.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

using same_tokens::Request;

size_t FreeBytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

class CudaMemory : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    source_ = OpenModel(DataDirectory() + "/" + GetParam()).value();
    requests_ = same_tokens::RequestMaker(source_->config().vocab_size).Make(200);
  }

  std::unique_ptr<WeightSource> source_;
  std::vector<Request> requests_;
};

TEST_P(CudaMemory, AThousandRequestsLeaveExactlyTheMemoryOfTheFirst) {
  const std::unique_ptr<CudaBackend> backend = CudaBackend::Create(*source_, {}).value();
  ASSERT_TRUE(backend->Reserve(600, {64, 512}).ok());
  FakeClock clock;
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  int64_t ended = 0;
  EngineCore core({.num_blocks = 600,
                   .max_running = 64,
                   .step_tokens = 512,
                   .chunk_tokens = 64,
                   .max_context = same_tokens::kContext},
                  backend.get(), &clock, &metrics, [&](const std::vector<OutputItem>& items) {
                    for (const OutputItem& item : items) ended += item.has_end;
                  });
  const auto run_all = [&] {
    for (size_t i = 0; i < requests_.size(); ++i) {
      std::vector<std::unique_ptr<Sequence>> choices;
      choices.push_back(std::make_unique<Sequence>());
      choices[0]->id = static_cast<SequenceId>(ended + static_cast<int64_t>(i) + 1);
      choices[0]->spec = requests_[i].spec;
      choices[0]->output = std::make_shared<OutputStream>();
      core.Add(std::move(choices));
    }
    while (core.RunOnce().value()) {
    }
  };
  run_all();  // requests of every kind: CUDA loads a kernel's code when it first runs
  const size_t free = FreeBytes();
  for (int i = 0; i < 5; ++i) run_all();
  EXPECT_EQ(FreeBytes(), free);
  EXPECT_EQ(ended, 6 * static_cast<int64_t>(requests_.size()));
}

TEST_P(CudaMemory, KvMemoryIsWhatIsLeft) {
  const std::unique_ptr<CudaBackend> backend = CudaBackend::Create(*source_, {}).value();
  const BackendLimits limits{64, 512};
  const int32_t blocks = backend->DefaultBlocks(limits).value();
  ASSERT_TRUE(backend->Reserve(blocks, limits).ok());
  const auto free = static_cast<int64_t>(FreeBytes());
  std::printf("%d blocks, %lld MiB free\n", blocks, static_cast<long long>(free >> 20));
  EXPECT_GT(free, CudaBackend::kMemoryMargin / 2);
  EXPECT_LT(free, CudaBackend::kMemoryMargin * 2);
}

// What three sequences and then eight get, whose blocks are strewn over the pool.
std::vector<StepResult> RunInPool(const WeightSource& source, int32_t num_blocks) {
  const std::unique_ptr<CudaBackend> backend = CudaBackend::Create(source, {}).value();
  EXPECT_TRUE(backend->Reserve(num_blocks, {.max_slots = 8, .max_step_rows = 512}).ok());
  StepDriver driver(backend.get(), num_blocks);
  std::vector<StepResult> results;
  for (const SlotId slots : {3, 8}) {
    for (SlotId slot = slots == 3 ? 0 : 3; slot < slots; ++slot) {
      driver.Attach(slot, {.logprobs = true});
      std::vector<TokenId> tokens(static_cast<size_t>(200 + 40 * slot));
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<TokenId>((i * 37 + static_cast<size_t>(slot)) % 1000);
      driver.AddRows(slot, tokens, 1);
      results.push_back(driver.Run(true));
    }
    for (int step = 0; step < 4; ++step) {
      for (SlotId slot = 0; slot < slots; ++slot) driver.AddDecodeRow(slot);
      results.push_back(driver.Run());
    }
  }
  return results;
}

// 10 GiB of keys and values: more than 32 bits of elements.
TEST(CudaPool, BlocksAnywhereInALargePoolGiveTheSameBits) {
  ModelConfig config = OpenModel("synthetic:qwen2.5-1.5b").value()->config();
  config.num_layers = 2;
  config.vocab_size = 4096;
  config.context_length = 2048;
  const SyntheticSource source(config);
  const int64_t block_bytes = config.kv_bytes_per_token() * kBlockTokens;
  const auto num_blocks = static_cast<int32_t>((int64_t{10} << 30) / block_bytes);
  if (FreeBytes() < size_t{12} << 30) GTEST_SKIP() << "12 GiB of the card's memory are not free";
  const std::vector<StepResult> small = RunInPool(source, 512), large = RunInPool(source, num_blocks);
  for (size_t i = 0; i < small.size(); ++i) {
    EXPECT_TRUE(large[i].logits == small[i].logits) << i;
    ASSERT_EQ(large[i].outputs.size(), small[i].outputs.size());
    for (size_t row = 0; row < small[i].outputs.size(); ++row) {
      EXPECT_EQ(large[i].outputs[row].token, small[i].outputs[row].token) << i;
      EXPECT_EQ(large[i].outputs[row].logprob, small[i].outputs[row].logprob) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaMemory, ::testing::Values("tiny-llama", "tiny-qwen2"),
                         [](const auto& test) { return std::string(test.param).substr(5); });

}  // namespace
}  // namespace ridge::worker
