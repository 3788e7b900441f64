// Whether one kernel takes what is behind attention in a batch of decode rows, by what the card has room for.
#include "worker/backend/cuda/mlp.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_cuda_runtime.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

constexpr int32_t kNumBlocks = 256;

// Whether a decode step of so many rows launches the kernel.
bool IsLaunched(int32_t rows, int cooperative_blocks) {
  fake_cuda::Card card;
  card.major = 9;
  card.minor = 0;
  card.num_sms = 132;
  card.shared_bytes_per_block = 227 << 10;
  card.memory_bytes = int64_t{64} << 30;
  card.maps_tensors = true;
  card.cooperative_blocks = cooperative_blocks;
  fake_cuda::Insert(card);
  ModelConfig config = OpenModel("synthetic:qwen2.5-1.5b").value()->config();
  config.num_layers = 2;
  config.vocab_size = 1024;
  const SyntheticSource source(config);
  const std::unique_ptr<CudaBackend> backend =
      CudaBackend::Create(source, {.graphs = false, .decode_layers = false}).value();
  EXPECT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 128, .max_step_rows = 128}).ok());
  StepDriver driver(backend.get(), kNumBlocks);
  for (SlotId slot = 0; slot < rows; ++slot) {
    driver.Attach(slot, {.temperature = 0.0f});
    driver.AddRows(slot, {1}, 1);
    driver.Run();
  }
  for (SlotId slot = 0; slot < rows; ++slot) driver.AddDecodeRow(slot);
  EXPECT_EQ(driver.Run().outputs.size(), static_cast<size_t>(rows));
  const auto& launched = fake_cuda::LaunchedSharedBytes();
  return std::any_of(launched.begin(), launched.end(),
                     [](const auto& kernel) { return kernel.first.find("MlpKernel") != std::string::npos; });
}

TEST(MlpTest, OneKernelTakesBatchesOfDecodeRows) {
  EXPECT_FALSE(IsLaunched(4, 132));
  for (int32_t rows : {5, 9, 64}) EXPECT_TRUE(IsLaunched(rows, 132)) << rows;
  EXPECT_FALSE(IsLaunched(65, 132));
}

TEST(MlpTest, KernelsOfTheirOwnTakeThemWhereItsBlocksDoNotFitAtOnce) {
  for (int32_t rows : {8, 32}) EXPECT_FALSE(IsLaunched(rows, 131)) << rows;
}

}  // namespace
}  // namespace ridge::worker
