// Synthetic weights must not fall into a rut: benchmarks with them should do what real text does.
#include <algorithm>
#include <set>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

// Distinct ids among 256 that follow `prompt`.
size_t DistinctIds(const WeightSource& source, const std::vector<TokenId>& prompt) {
  const auto backend = CpuBackend::Create(source, {.threads = 2}).value();
  EXPECT_TRUE(backend->Reserve(64, {.max_slots = 1, .max_step_rows = 64}).ok());
  StepDriver driver(backend.get(), 64);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, prompt, 1);
  std::set<TokenId> ids = {driver.Run().outputs[0].token};
  for (int i = 1; i < 256; ++i) {
    driver.AddDecodeRow(0);
    ids.insert(driver.Run().outputs[0].token);
  }
  return ids.size();
}

TEST(SyntheticDecode, GreedyVisitsManyIds) {
  const auto source = OpenModel("synthetic:smollm2-135m").value();
  EXPECT_GE(DistinctIds(*source, {1}), 50u);
  EXPECT_GE(DistinctIds(*source, {100, 2000, 30000}), 50u);
}

// The larger shapes with their heads, but fewer and narrower layers: the whole ones take minutes here.
TEST(SyntheticDecode, GreedyVisitsManyIdsInLargerShapes) {
  for (const char* name : {"synthetic:llama-3.2-1b", "synthetic:qwen2.5-0.5b", "synthetic:qwen2.5-1.5b",
                           "synthetic:qwen2.5-3b", "synthetic:qwen2.5-7b", "synthetic:qwen3-0.6b"}) {
    ModelConfig config = OpenModel(name).value()->config();
    config.num_layers = 2;
    config.hidden_size = std::min(config.hidden_size, 512);
    config.mlp_size = 1024;
    config.vocab_size = 4096;
    EXPECT_GE(DistinctIds(SyntheticSource(config), {1}), 50u) << name;
  }
}

}  // namespace
}  // namespace ridge::worker
