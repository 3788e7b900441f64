// What kernels take of a multiprocessor: of sm_86, the smallest that this project promises, as they are
// launched (by the whole forward pass on a fake card) and as they were compiled (by cuobjdump, which is
// needed); of sm_90a, whose own kernels no fake card launches, as they were compiled.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/sampling.h"
#include "kernels/order.h"
#include "tests/support/fake_cuda_runtime.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

constexpr int kSharedBytes = 99 << 10;  // that a block may have
constexpr int32_t kNumBlocks = 4096;

struct Usage {
  int shared_bytes = 0;  // static
  int local_bytes = 0;   // spilled registers, local arrays
};

// What this program's code for `architecture` takes, by mangled name. Empty where cuobjdump does not run.
std::map<std::string, Usage> CompiledUsage(const std::string& architecture) {
  const char* tool = std::getenv("RIDGE_TEST_CUOBJDUMP");
  const std::string command = std::string(tool != nullptr ? tool : "cuobjdump") + " -res-usage -arch " +
                              architecture + " /proc/" + std::to_string(getpid()) + "/exe 2>/dev/null";
  std::map<std::string, Usage> usage;
  FILE* output = popen(command.c_str(), "r");
  std::array<char, 4096> line;
  std::string kernel;
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    char name[2048];
    int stack, shared, local;
    if (std::sscanf(line.data(), " Function %2047[^:]:", name) == 1) kernel = name;
    const char* numbers = std::strstr(line.data(), "STACK:");
    if (numbers != nullptr &&
        std::sscanf(numbers, "STACK:%d SHARED:%d LOCAL:%d", &stack, &shared, &local) == 3)
      usage[kernel] = {shared, stack + local};
  }
  pclose(output);
  return usage;
}

// Bytes of local memory that a kernel may have: none, but for DrawKernel's four random words, of which it
// takes one by number, and for what does not fit into the registers of two kernels of sm_90a: a few words.
int AllowedLocalBytes(const std::string& kernel) {
  const auto is = [&](const char* name) { return kernel.find(name) != std::string::npos; };
  return is("DrawKernel") ? 16 : is("MatmulBatchKernelILi64") || is("DecodeLayers") ? 64 : 0;
}

// Says so, or fails where tools are required, if there is nothing to look at.
bool IsMissing(const std::map<std::string, Usage>& compiled) {
  if (!compiled.empty()) return false;
  EXPECT_EQ(std::getenv("RIDGE_REQUIRE_TOOLS"), nullptr) << "RIDGE_TEST_CUOBJDUMP names no cuobjdump";
  return true;
}

constexpr char kMissing[] =
    "no cuobjdump (RIDGE_TEST_CUOBJDUMP names one), or no code for the architecture in this build";

// Heads of 64 and 128 with kernels of their own, others; q and k normed; long and short sums; a large
// vocabulary.
std::vector<ModelConfig> Models() {
  std::vector<ModelConfig> models;
  for (const char* name : {"qwen2.5-1.5b", "smollm2-135m", "qwen3-0.6b", "qwen2.5-7b"}) {
    ModelConfig model = OpenModel(std::string("synthetic:") + name).value()->config();
    model.num_layers = 1;
    model.context_length = 4096;
    models.push_back(model);
  }
  models.push_back(models.front());
  models.back().head_dim = 256;
  models.back().num_heads = 16;
  models.back().num_kv_heads = 1;
  return models;
}

// Steps of every size and kind, so that every plan's kernels are launched.
void RunSteps(const ModelConfig& model, const SamplingParams& sampling) {
  const SyntheticSource source(model);
  std::unique_ptr<CudaBackend> backend = CudaBackend::Create(source, {}).value();
  ASSERT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 64, .max_step_rows = 1024}).ok());
  StepDriver driver(backend.get(), kNumBlocks);
  for (int32_t rows : {1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 64, 65, 128, 300, 1024}) {
    for (bool all_outputs : {false, true}) {
      driver.Attach(0, sampling);
      driver.AddRows(0, std::vector<TokenId>(static_cast<size_t>(rows), 1), all_outputs ? rows : 1);
      driver.Run();
      driver.AddDecodeRow(0);
      driver.Run();
      driver.Release(0);
    }
  }
  for (SlotId slot = 0; slot < 64; ++slot) {
    driver.Attach(slot, sampling);
    driver.AddRows(slot, std::vector<TokenId>(slot % 3 == 0 ? 900 : 3, 1), 1);
    driver.Run();
    for (SlotId each = 0; each <= slot; ++each) driver.AddDecodeRow(each);
    driver.Run();
  }
}

TEST(KernelResources, BlocksFitAnSm86AndHotKernelsSpillNothing) {
  const std::map<std::string, Usage> compiled = CompiledUsage("sm_86");
  if (IsMissing(compiled)) GTEST_SKIP() << kMissing;
  for (const ModelConfig& model : Models()) {
    SCOPED_TRACE(model.name);
    fake_cuda::Insert({.memory_bytes = int64_t{64} << 30});
    RunSteps(model, {.temperature = 0.0f});
    for (const auto& [kernel, dynamic_bytes] : fake_cuda::LaunchedSharedBytes()) {
      ASSERT_TRUE(compiled.contains(kernel)) << kernel;
      EXPECT_LE(compiled.at(kernel).local_bytes, AllowedLocalBytes(kernel)) << kernel;
    }
    RunSteps(model, {.temperature = 0.7f, .top_p = 0.9f, .top_k = 20, .logprobs = true});
    EXPECT_GT(fake_cuda::LaunchedSharedBytes().size(), 10u);
    for (const auto& [kernel, dynamic_bytes] : fake_cuda::LaunchedSharedBytes()) {
      EXPECT_LE(compiled.at(kernel).shared_bytes + dynamic_bytes, kSharedBytes) << kernel;
    }
  }
}

// Without asking for more, a block has 48 KiB.
TEST(KernelResources, SamplingsLastKernelHasRoomForTheLargestVocabulary) {
  constexpr int kSlices = kernels::cuda::kMaxSamplingVocabulary / kernels::kVocabularySlice;
  for (const char* architecture : {"sm_86", "sm_90a"}) {
    const std::map<std::string, Usage> compiled = CompiledUsage(architecture);
    if (IsMissing(compiled)) GTEST_SKIP() << kMissing;
    const auto finish = std::find_if(compiled.begin(), compiled.end(), [](const auto& kernel) {
      return kernel.first.find("FinishKernel") != std::string::npos;
    });
    ASSERT_NE(finish, compiled.end());
    EXPECT_LE(finish->second.shared_bytes + kSlices * 8, 48 << 10) << architecture;
  }
}

TEST(KernelResources, KernelsOfSm90aSpillNothing) {
  const std::map<std::string, Usage> compiled = CompiledUsage("sm_90a");
  if (IsMissing(compiled)) GTEST_SKIP() << kMissing;
  int wgmma_kernels = 0;
  for (const auto& [kernel, usage] : compiled) {
    EXPECT_LE(usage.local_bytes, AllowedLocalBytes(kernel)) << kernel;
    if (kernel.find("MatmulWgmmaKernel") != std::string::npos) ++wgmma_kernels;
  }
  EXPECT_EQ(wgmma_kernels, 4);
}

}  // namespace
}  // namespace ridge::worker
