// Whether one kernel takes what is behind attention in a batch of decode rows, by what the card has room for.
#include "worker/backend/cuda/mlp.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_cuda_runtime.h"
#include "tests/unit/worker/backend/cuda/hopper_card.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"

namespace ridge::worker {
namespace {

constexpr int32_t kNumBlocks = 256;

// Whether a decode step of so many rows launches the kernel.
bool IsLaunched(int32_t rows, int cooperative_blocks) {
  fake_cuda::Insert(Hopper(cooperative_blocks));
  const SyntheticSource source = TwoLayers();
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
