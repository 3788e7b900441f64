// SmolLM2 against logits recorded from transformers. Needs the model: RIDGE_TEST_MODEL names
// SmolLM2-135M-Instruct.Q4_1.gguf. Skipped without it, unless RIDGE_REQUIRE_TOOLS is set.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/golden_checks.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

constexpr int32_t kStepRows = 512;
constexpr int32_t kNumBlocks = 640;

class SmolLm2Golden : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* path = std::getenv("RIDGE_TEST_MODEL");
    if (path == nullptr || !std::filesystem::exists(path)) return;
    backend_ = CpuBackend::Create(*OpenModel(path).value(), {.threads = 2}).value().release();
    ASSERT_TRUE(backend_->Reserve(kNumBlocks, {.max_slots = 16, .max_step_rows = kStepRows}).ok());
  }
  static void TearDownTestSuite() {
    delete backend_;
    backend_ = nullptr;
  }

  void SetUp() override {
    if (backend_ == nullptr) {
      ASSERT_EQ(std::getenv("RIDGE_REQUIRE_TOOLS"), nullptr)
          << "RIDGE_TEST_MODEL is not set or names no file";
      GTEST_SKIP() << "RIDGE_TEST_MODEL is not set or names no file";
    }
    golden_ = ReadGolden("smollm2-135m/golden_fp16w.json");
    ASSERT_EQ(golden_["cases"].size(), 12u);
    driver_ = std::make_unique<StepDriver>(backend_, kNumBlocks);
  }

  void TearDown() override {
    if (driver_ != nullptr) driver_->Run();  // the releases that are still planned
  }

  std::vector<std::vector<float>> LastLogits(const std::vector<TokenId>& tokens, int32_t count) {
    return worker::LastLogits(driver_.get(), backend_->Info().vocab_size, kStepRows, tokens, count);
  }

  static CpuBackend* backend_;
  nlohmann::json golden_;
  std::unique_ptr<StepDriver> driver_;
};

CpuBackend* SmolLm2Golden::backend_ = nullptr;

TEST_F(SmolLm2Golden, LogitsAlongTheRecordedIds) {
  ExpectSmolLm2Golden(driver_.get(), backend_->Info().vocab_size, kStepRows, golden_);
}

// All prompts at once, each token fed by the backend itself.
TEST_F(SmolLm2Golden, FreeRunsFollowTheRecordedIdsUpToTheFirstNearTie) {
  const auto& cases = golden_["cases"];
  std::vector<std::vector<TokenId>> generated(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const SlotId slot = static_cast<SlotId>(i);
    const std::vector<TokenId> prompt = cases[i]["prompt_ids"];
    driver_->Attach(slot, {.temperature = 0.0f});
    for (size_t begin = 0; begin < prompt.size(); begin += kStepRows) {
      const size_t end = std::min(prompt.size(), begin + kStepRows);
      driver_->AddRows(
          slot, {prompt.begin() + static_cast<int64_t>(begin), prompt.begin() + static_cast<int64_t>(end)},
          end == prompt.size() ? 1 : 0);
      const StepResult result = driver_->Run();
      if (!result.outputs.empty()) generated[i].push_back(result.outputs[0].token);
    }
  }
  for (size_t step = 1; step < golden_["steps"]; ++step) {
    for (size_t i = 0; i < cases.size(); ++i) driver_->AddDecodeRow(static_cast<SlotId>(i));
    const StepResult result = driver_->Run();
    for (size_t i = 0; i < cases.size(); ++i) generated[i].push_back(result.outputs[i].token);
  }
  size_t compared = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    for (size_t step = 0; step < generated[i].size() && cases[i]["gaps"][step] >= kNearTie;
         ++step, ++compared) {
      ASSERT_EQ(generated[i][step], cases[i]["greedy_ids"][step]) << cases[i]["name"] << ", step " << step;
    }
    driver_->Release(static_cast<SlotId>(i));
  }
  EXPECT_GT(compared, 100u);
}

TEST_F(SmolLm2Golden, PromptLogprobs) {
  int compared = 0;
  for (const auto& golden : golden_["cases"]) {
    if (!golden.contains("prompt_logprobs") || golden["prompt_logprobs"].is_null()) continue;
    const std::vector<TokenId> prompt = golden["prompt_ids"];
    const auto logits = LastLogits(prompt, static_cast<int32_t>(prompt.size()));
    ASSERT_EQ(golden["prompt_logprobs"].size(), prompt.size() - 1);
    for (size_t i = 0; i + 1 < prompt.size(); ++i, ++compared) {
      const double logprob = logits[i][static_cast<size_t>(prompt[i + 1])] - LogSumExp(logits[i]);
      EXPECT_NEAR(logprob, golden["prompt_logprobs"][i].get<double>(), 1e-1)
          << golden["name"] << ", id " << i + 1;
    }
  }
  EXPECT_GT(compared, 50);
}

}  // namespace
}  // namespace ridge::worker
