// The tiny checkpoints against logits recorded from transformers: the reference in fp32, and the CPU backend.
#include <filesystem>

#include "gtest/gtest.h"
#include "tests/support/reference_model.h"
#include "tests/unit/worker/backend/golden_checks.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

namespace reference = kernels::reference;
namespace fs = std::filesystem;

struct Checkpoint {
  const char* name;
  const char* config;  // its file
};

// "llama_config", for the test's name.
std::string TestName(const testing::TestParamInfo<Checkpoint>& info) {
  const std::string model(info.param.name), config(info.param.config);
  return model.substr(model.find('-') + 1) + (config == "config.json" ? "_classic" : "_v5");
}

class TinyGolden : public testing::TestWithParam<Checkpoint> {
 protected:
  void SetUp() override {
    const fs::path from = fs::path(RIDGE_TEST_DATA_DIR) / GetParam().name;
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string leaf(test->name());
    std::replace(leaf.begin(), leaf.end(), '/', '.');
    const fs::path directory = fs::path(testing::TempDir()) / ("TinyGolden." + leaf);
    fs::remove_all(directory);
    fs::create_directories(directory);
    fs::copy_file(from / GetParam().config, directory / "config.json");
    fs::create_symlink(from / "model.safetensors", directory / "model.safetensors");
    auto source = OpenModel(directory.string());
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
    golden_ = ReadGolden(std::string(GetParam().name) + "/golden.json");
    ASSERT_EQ(golden_["cases"].size(), 3u);
  }

  static TokenId ArgMax(const std::vector<float>& logits) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  std::unique_ptr<WeightSource> source_;
  nlohmann::json golden_;
};

TEST_P(TinyGolden, ReferenceInFloat32) {
  constexpr double kTolerance = 5e-4;
  const ReferenceModel model(*source_, reference::Mode::kFloat32);
  for (const auto& golden : golden_["cases"]) {
    const std::vector<TokenId> prompt = golden["prompt_ids"];
    ReferenceSequence sequence(&model);
    std::vector<float> logits = sequence.Append(prompt, 1);
    EXPECT_LE(LogitDistance(logits, golden["logits"]), kTolerance);
    std::vector<TokenId> ids;
    while (ids.size() < golden["greedy_ids"].size()) {
      ids.push_back(ArgMax(logits));
      logits = sequence.Append({ids.back()}, 1);
    }
    EXPECT_EQ(ids, golden["greedy_ids"].get<std::vector<TokenId>>());
    EXPECT_LE(LogitDistance(logits, golden["logits_after_greedy"]), kTolerance);
  }
}

TEST_P(TinyGolden, CpuBackend) {
  auto backend = CpuBackend::Create(*source_, {.threads = 2});
  ASSERT_TRUE(backend.ok()) << backend.status();
  ASSERT_TRUE((*backend)->Reserve(64, {.max_slots = 1, .max_step_rows = 256}).ok());
  StepDriver driver(backend->get(), 64);
  ExpectTinyGolden(&driver, golden_);
}

// The oracle in contract mode and the backend give the same bits at every position.
TEST_P(TinyGolden, CpuBackendEqualsReferenceBitForBit) {
  auto backend = CpuBackend::Create(*source_, {.threads = 2});
  ASSERT_TRUE(backend.ok()) << backend.status();
  ASSERT_TRUE((*backend)->Reserve(64, {.max_slots = 1, .max_step_rows = 512}).ok());
  StepDriver driver(backend->get(), 64);
  const ReferenceModel model(*source_, reference::Mode::kContract);
  for (const auto& golden : golden_["cases"]) {
    std::vector<TokenId> tokens = golden["prompt_ids"];
    for (int repeat = 0; repeat < 9; ++repeat) {  // beyond the first attention chunk
      for (TokenId id : golden["greedy_ids"]) tokens.push_back(id);
    }
    ReferenceSequence sequence(&model);
    const int32_t rows = static_cast<int32_t>(tokens.size());
    driver.Attach(0, {.temperature = 0.0f});
    driver.AddRows(0, tokens, rows);
    const StepResult result = driver.Run(true);
    ASSERT_EQ(result.logits, sequence.Append(tokens, rows));
    driver.Release(0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, TinyGolden,
    testing::Values(Checkpoint{"tiny-llama", "config.json"}, Checkpoint{"tiny-llama", "config.v5.json"},
                    Checkpoint{"tiny-llama3", "config.json"}, Checkpoint{"tiny-llama3", "config.v5.json"},
                    Checkpoint{"tiny-qwen2", "config.json"}, Checkpoint{"tiny-qwen2", "config.v5.json"},
                    Checkpoint{"tiny-qwen3", "config.json"}, Checkpoint{"tiny-qwen3", "config.v5.json"}),
    TestName);

}  // namespace
}  // namespace ridge::worker
