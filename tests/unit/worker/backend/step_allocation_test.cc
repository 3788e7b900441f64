// Once it runs, a backend's threads allocate nothing: neither for prefill nor for decoding.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"

namespace {

std::atomic<int64_t> allocations{0};
thread_local bool uncounted = false;

[[maybe_unused]] void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  if (!uncounted) ++allocations;
  return memory;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RIDGE_COUNTS_ALLOCATIONS 0  // the sanitizer has its own operator new
#else
#define RIDGE_COUNTS_ALLOCATIONS 1
void* operator new(size_t size) {
  return Counted(std::malloc(size));
}
void* operator new(size_t size, std::align_val_t align) {
  const size_t unit = static_cast<size_t>(align);
  return Counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

namespace ridge::worker {
namespace {

TEST(StepAllocation, BackendsThreadsAllocateNothingOnceTheyRun) {
  if (!RIDGE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer allocates";
  uncounted = true;  // this thread plays the engine
  const auto source = OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-llama").value();
  const auto backend = CpuBackend::Create(*source, {.threads = 2}).value();
  ASSERT_TRUE(backend->Reserve(128, {.max_slots = 4, .max_step_rows = 64}).ok());
  StepDriver driver(backend.get(), 128);
  const auto prefill = [&](SlotId slot, const SamplingParams& sampling) {
    driver.Attach(slot, sampling);
    driver.AddRows(slot, std::vector<TokenId>(40, 5), 1);
    driver.Run();
  };
  const SamplingParams greedy = {.temperature = 0.0f, .logprobs = true, .top_logprobs = 20};
  const SamplingParams sampled = {.temperature = 0.8f, .top_p = 0.9f, .top_k = 20, .seed = 7};
  const auto decode = [&] {
    driver.AddDecodeRow(0);
    driver.AddDecodeRow(1);
    driver.Run();
  };
  prefill(0, greedy);
  prefill(1, sampled);
  decode();

  const int64_t before = allocations;
  EXPECT_GT(before, 0);  // they are counted
  for (int step = 0; step < 150; ++step) decode();
  prefill(2, sampled);
  driver.Release(0);
  driver.AddDecodeRow(2);
  driver.Run();
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace ridge::worker
