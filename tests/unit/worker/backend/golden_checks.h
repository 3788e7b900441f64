// Whether a backend gives what was recorded from transformers (tests/golden), for tests of each backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/golden_file.h"
#include "tests/unit/worker/backend/step_driver.h"

namespace ridge::worker {

// Of SmolLM2's recorded ids one whose logit leads by less may fall either way.
inline constexpr double kNearTie = 6e-2;

// Largest distance of `logits` to the recorded ones.
inline double LogitDistance(const std::vector<float>& logits, const nlohmann::json& recorded) {
  EXPECT_EQ(logits.size(), recorded.size());
  double distance = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    distance = std::max(distance, std::abs(logits[i] - recorded[i].get<double>()));
  return distance;
}

// A tiny checkpoint's cases, one after the other, in slot 0.
inline void ExpectTinyGolden(StepDriver* driver, const nlohmann::json& cases) {
  constexpr double kTolerance = 2e-2;
  for (const auto& golden : cases["cases"]) {
    driver->Attach(0, {.temperature = 0.0f});
    driver->AddRows(0, golden["prompt_ids"], 1);
    StepResult result = driver->Run(true);
    EXPECT_LE(LogitDistance(result.logits, golden["logits"]), kTolerance);
    // The golden's own ids are fed, so that a near tie does not end the comparison.
    const std::vector<TokenId> ids = golden["greedy_ids"];
    for (size_t i = 0; i < ids.size(); ++i) {
      if (golden["gaps"][i] > 2 * kTolerance) {
        EXPECT_EQ(result.outputs[0].token, ids[i]) << i;
      }
      driver->AddRows(0, {ids[i]}, 1);
      result = driver->Run(true);
    }
    EXPECT_LE(LogitDistance(result.logits, golden["logits_after_greedy"]), kTolerance);
    driver->Release(0);
  }
}

// Logits after each of the last `count` tokens of a sequence of its own, in steps of at most `step_rows`.
inline std::vector<std::vector<float>> LastLogits(StepDriver* driver, int64_t vocab, int32_t step_rows,
                                                  const std::vector<TokenId>& tokens, int32_t count) {
  std::vector<std::vector<float>> rows;
  const int32_t size = static_cast<int32_t>(tokens.size());
  driver->Attach(0, {.temperature = 0.0f});
  for (int32_t begin = 0; begin < size; begin += step_rows) {
    const int32_t end = std::min(size, begin + step_rows);
    driver->AddRows(0, {tokens.begin() + begin, tokens.begin() + end},
                    std::clamp(count - (size - end), 0, end - begin));
    const StepResult result = driver->Run(true);
    for (size_t i = 0; i < result.outputs.size(); ++i) {
      const auto row = result.logits.begin() + static_cast<int64_t>(i) * vocab;
      rows.emplace_back(row, row + vocab);
    }
  }
  driver->Release(0);
  return rows;
}

inline double LogSumExp(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

// SmolLM2's cases: the recorded ids are fed, logits compared at each.
inline void ExpectSmolLm2Golden(StepDriver* driver, int64_t vocab, int32_t step_rows,
                                const nlohmann::json& cases) {
  for (const auto& golden : cases["cases"]) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    std::vector<TokenId> tokens = golden["prompt_ids"];
    const std::vector<TokenId> ids = golden["greedy_ids"];
    tokens.insert(tokens.end(), ids.begin(), ids.end() - 1);
    const auto logits = LastLogits(driver, vocab, step_rows, tokens, static_cast<int32_t>(ids.size()));
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
    std::printf("%-18s top-5: largest %.4f, rms %.4f; log-sum-exp: largest %.4f\n",
                golden["name"].get<std::string>().c_str(), largest, rms, largest_sum);
    EXPECT_EQ(count, 80);
    EXPECT_LE(largest, 8e-2);
    EXPECT_LE(rms, 1.5e-2);
    EXPECT_LE(largest_sum, 8e-2);
    for (size_t step = 0; step < ids.size(); ++step) {
      if (golden["gaps"][step] < kNearTie) continue;
      const auto top = std::max_element(logits[step].begin(), logits[step].end()) - logits[step].begin();
      EXPECT_EQ(top, ids[step]) << "step " << step;
    }
  }
}

}  // namespace ridge::worker
