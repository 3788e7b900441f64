// SmolLM2 against logits recorded from transformers. Needs the model: RIDGE_TEST_MODEL names
// SmolLM2-135M-Instruct.Q4_1.gguf. Skipped without it, unless RIDGE_REQUIRE_TOOLS is set.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/golden_file.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

// A recorded gap below this may fall either way.
constexpr double kGap = 6e-2;
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

  // Logits after each of the last `count` tokens.
  std::vector<std::vector<float>> LastLogits(const std::vector<TokenId>& tokens, int32_t count) {
    std::vector<std::vector<float>> rows;
    const int32_t size = static_cast<int32_t>(tokens.size());
    driver_->Attach(0, {.temperature = 0.0f});
    for (int32_t begin = 0; begin < size; begin += kStepRows) {
      const int32_t end = std::min(size, begin + kStepRows);
      driver_->AddRows(0, {tokens.begin() + begin, tokens.begin() + end},
                       std::clamp(count - (size - end), 0, end - begin));
      const StepResult result = driver_->Run(true);
      const int64_t vocab = backend_->Info().vocab_size;
      for (size_t i = 0; i < result.outputs.size(); ++i) {
        const auto row = result.logits.begin() + static_cast<int64_t>(i) * vocab;
        rows.emplace_back(row, row + vocab);
      }
    }
    driver_->Release(0);
    return rows;
  }

  static double LogSumExp(const std::vector<float>& logits) {
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (float logit : logits) sum += std::exp(logit - max);
    return max + std::log(sum);
  }

  static CpuBackend* backend_;
  nlohmann::json golden_;
  std::unique_ptr<StepDriver> driver_;
};

CpuBackend* SmolLm2Golden::backend_ = nullptr;

TEST_F(SmolLm2Golden, LogitsAlongTheRecordedIds) {
  for (const auto& golden : golden_["cases"]) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    std::vector<TokenId> tokens = golden["prompt_ids"];
    const std::vector<TokenId> ids = golden["greedy_ids"];
    tokens.insert(tokens.end(), ids.begin(), ids.end() - 1);
    const auto logits = LastLogits(tokens, static_cast<int32_t>(ids.size()));
    ASSERT_EQ(logits.size(), ids.size());

    double largest = 0, squares = 0, largest_sum = 0;
    int count = 0;
    for (size_t step = 0; step < golden["top5"].size(); ++step) {
      for (const auto& entry : golden["top5"][step]) {
        const double distance = std::abs(logits[step][entry[0].get<size_t>()] - entry[1].get<double>());
        largest = std::max(largest, distance);
        squares += distance * distance;
        ++count;
      }
      largest_sum =
          std::max(largest_sum, std::abs(LogSumExp(logits[step]) - golden["logsumexp"][step].get<double>()));
    }
    const double rms = std::sqrt(squares / count);
    printf("%-18s top-5: largest %.4f, rms %.4f; log-sum-exp: largest %.4f\n",
           golden["name"].get<std::string>().c_str(), largest, rms, largest_sum);
    EXPECT_EQ(count, 80);
    EXPECT_LE(largest, 8e-2);
    EXPECT_LE(rms, 1.5e-2);
    EXPECT_LE(largest_sum, 8e-2);
    for (size_t step = 0; step < ids.size(); ++step) {
      if (golden["gaps"][step] < kGap) continue;
      const auto top = std::max_element(logits[step].begin(), logits[step].end()) - logits[step].begin();
      EXPECT_EQ(top, ids[step]) << "step " << step;
    }
  }
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
    for (size_t step = 0; step < generated[i].size() && cases[i]["gaps"][step] >= kGap; ++step, ++compared) {
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
