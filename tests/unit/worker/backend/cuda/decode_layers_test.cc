// Whether one kernel takes the layers of a decode step, by what the card has room for.
#include "worker/backend/cuda/decode_layers.h"

#include <algorithm>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/device.h"
#include "tests/support/fake_cuda_runtime.h"
#include "tests/unit/worker/backend/cuda/hopper_card.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"

namespace ridge::worker {
namespace {

constexpr int32_t kNumBlocks = 64;

std::string Choice(int cooperative_blocks) {
  fake_cuda::Insert(Hopper(cooperative_blocks));
  const SyntheticSource source = TwoLayers();
  kernels::cuda::DeviceInfo device;
  EXPECT_EQ(kernels::cuda::GetDeviceInfo(&device), cudaSuccess);
  const CudaStream stream = CudaStream::Create().value();
  const CudaWeights weights = CudaWeights::Load(source, stream.get(), MatrixLayout::kPacked).value();
  return DecodeLayers::Create(source.config(), weights, device, stream.get()).value().ToString();
}

// Whether a decode step of one row, in graphs or on the stream, launches the kernel.
bool IsLaunched(int cooperative_blocks, bool graphs) {
  fake_cuda::Insert(Hopper(cooperative_blocks));
  const SyntheticSource source = TwoLayers();
  const std::unique_ptr<CudaBackend> backend = CudaBackend::Create(source, {.graphs = graphs}).value();
  EXPECT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 2, .max_step_rows = 64}).ok());
  StepDriver driver(backend.get(), kNumBlocks);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, {1, 2, 3}, 1);
  driver.Run();
  driver.AddDecodeRow(0);
  EXPECT_EQ(driver.Run().outputs.size(), 1u);
  // The backend's streams do not wait for the default one.
  for (const fake_cuda::StreamCall& call : fake_cuda::StreamCalls())
    EXPECT_TRUE(call.what != fake_cuda::Enqueued::kCopyToDevice || call.stream != nullptr);
  const auto& launched = fake_cuda::LaunchedSharedBytes();
  return std::any_of(launched.begin(), launched.end(), [](const auto& kernel) {
    return kernel.first.find("DecodeLayersKernel") != std::string::npos;
  });
}

TEST(DecodeLayersTest, OneKernelTakesThemWhereItsBlocksFitAtOnce) {
  EXPECT_EQ(Choice(132).substr(0, 35), "layers in one kernel: blocks=132 ri");
  for (const bool graphs : {false, true}) EXPECT_TRUE(IsLaunched(132, graphs)) << graphs;
}

TEST(DecodeLayersTest, KernelsOfTheirOwnTakeThemWhereACooperativeLaunchIsRefused) {
  EXPECT_EQ(Choice(131),
            "layers by kernels of their own: 132 blocks at once: cudaErrorCooperativeLaunchTooLarge");
  for (const bool graphs : {false, true}) EXPECT_FALSE(IsLaunched(131, graphs)) << graphs;
}

}  // namespace
}  // namespace ridge::worker
