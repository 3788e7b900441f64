// What a real fault of a kernel is said to be. The process that has it is lost: each is a child's.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/golden_file.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

// Ends with the error of step 3, in which a kernel writes 8 GiB beyond its memory.
void FailInStepThree(bool graphs) {
  constexpr int32_t kNumBlocks = 64;
  const auto source = OpenModel(DataDirectory() + "/tiny-llama").value();
  const auto backend = CudaBackend::Create(*source, {.graphs = graphs}).value();
  if (!backend->Reserve(kNumBlocks, {.max_slots = 8, .max_step_rows = 64}).ok()) return;
  StepDriver driver(backend.get(), kNumBlocks);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, {1, 2, 3}, 1);
  driver.Run();
  driver.AddDecodeRow(0);
  driver.Run();
  SlotAttach attach{1, {.temperature = 0.0f}};
  attach.controls.bias = {{INT32_MAX, 1.0f}};
  driver.Attach(attach);
  driver.AddRows(1, {1, 2, 3}, 0);
  driver.Run();
  driver.AddRows(1, {4}, 1);
  const absl::Status status = backend->Collect(driver.Submit()).status();
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(status.ok() ? 0 : 1);
}

TEST(CudaFaultDeathTest, AnIllegalAccessNamesItsStepAndTheKernelsThatItCanBe) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const testing::ExitedWithCode failed(1);
  // Which of the two depends on what stands at the address.
  EXPECT_EXIT(FailInStepThree(true), failed,
              "step 3 \\(1 rows, a graph of 1\\): CUDA: a kernel failed: "
              "cudaError(IllegalAddress|InvalidAddressSpace).*; one of: .*sampling");
  // What is enqueued one by one may meet the error before anybody waits.
  EXPECT_EXIT(FailInStepThree(false), failed,
              "step 3 \\(1 rows\\): CUDA: "
              ".*cudaError(IllegalAddress|InvalidAddressSpace).*(; one of: .*sampling|since step 3)");
}

}  // namespace
}  // namespace ridge::worker
