#include "kernels/logit_controls.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/sampling.h"
#include "kernels/sampling.h"

namespace ridge::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The lists that a RowControls points to.
struct Lists {
  explicit Lists(const reference::Controls& controls, size_t vocab) : occurrences(vocab) {
    for (int32_t id : controls.prompt) occurrences[id] |= kInPrompt;
    for (int32_t id : controls.output) ++occurrences[id];
    for (const auto& [id, value] : controls.bias) bias.push_back({id, value});
    if (!controls.allowed.empty()) allowed.resize(MaskWords(static_cast<int64_t>(vocab)));
    for (int32_t id : controls.allowed) allowed[id / 32] |= 1u << (id % 32);
    banned.assign(controls.banned.begin(), controls.banned.end());
    row.penalties = controls.penalties;
    row.occurrences = occurrences;
    row.bias = bias;
    row.allowed = allowed;
    row.banned = absl::MakeConstSpan(banned).subspan(0, banned.size() / 2);
    row.also_banned = absl::MakeConstSpan(banned).subspan(banned.size() / 2);
  }

  std::vector<uint32_t> occurrences;
  std::vector<LogitBias> bias;
  std::vector<uint32_t> allowed;
  std::vector<int32_t> banned;
  RowControls row;
};

std::vector<float> Apply(std::vector<float> logits, const reference::Controls& controls) {
  const Lists lists(controls, logits.size());
  ApplyControls(lists.row, absl::MakeSpan(logits));
  return logits;
}

reference::Controls RandomControls(int32_t vocab, std::mt19937* random) {
  const auto pick = [&](std::vector<float> values) { return values[(*random)() % values.size()]; };
  const auto id = [&] { return static_cast<int32_t>((*random)() % static_cast<uint32_t>(vocab)); };
  reference::Controls controls;
  controls.penalties = {.repetition = pick({1, 1, 1.3f, 0.5f, 10, 1e-3f}),
                        .presence = pick({0, 0, 0.7f, -2, 2}),
                        .frequency = pick({0, 0, 0.3f, -2, 2})};
  for (uint32_t i = (*random)() % 40; i > 0; --i) controls.prompt.push_back(id());
  for (uint32_t i = (*random)() % 40; i > 0; --i) controls.output.push_back(id());
  for (uint32_t i = (*random)() % 10; i > 0; --i) controls.bias[id()] = pick({-100, -1.5f, 0.1f, 100});
  if ((*random)() % 3 == 0) {
    for (uint32_t i = 1 + (*random)() % 20; i > 0; --i) controls.allowed.insert(id());
  }
  for (uint32_t i = (*random)() % 10; i > 0; --i) controls.banned.insert(id());
  return controls;
}

std::vector<float> RandomLogits(size_t vocab, std::mt19937* random) {
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = std::normal_distribution<float>(0, 4)(*random);
  if ((*random)() % 3 == 0) {
    for (float& logit : logits) logit = std::round(logit);
  }
  return logits;
}

TEST(ApplyControls, RepetitionPenaltyTakesLikelihoodFromTokensOfPromptAndOutput) {
  EXPECT_THAT(
      Apply({3, -3, 0, 3, 3}, {.penalties = {.repetition = 2}, .prompt = {0, 1, 1, 2}, .output = {0, 3, 3}}),
      ElementsAre(1.5f, -6, 0, 1.5f, 3));
}

TEST(ApplyControls, PresenceAndFrequencyCountTheOutputAlone) {
  EXPECT_THAT(
      Apply({1, 1, 1},
            {.penalties = {.presence = 0.5f, .frequency = 0.25f}, .prompt = {0, 0}, .output = {1, 2, 2}}),
      ElementsAre(1, 0.25f, 0));
}

TEST(ApplyControls, PenaltiesComeBeforeBiasAndBiasBeforeMasks) {
  EXPECT_THAT(Apply({4, 4, 4}, {.penalties = {.repetition = 2},
                                .prompt = {0},
                                .bias = {{0, 1.0f}, {1, 100.0f}, {2, -1.0f}},
                                .banned = {1}}),
              ElementsAre(3, -INFINITY, 3));
}

TEST(ApplyControls, AllowedIdsLeaveNoOtherAndBannedOnesAreTakenFromThem) {
  EXPECT_THAT(Apply({1, 2, 3, 4}, {.allowed = {0, 2, 3}, .banned = {3}}),
              ElementsAre(1, -INFINITY, 3, -INFINITY));
}

TEST(ApplyControls, GivesThePlainDefinitionsBits) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    const size_t vocab = 1 + random() % 200;
    const std::vector<float> logits = RandomLogits(vocab, &random);
    const reference::Controls controls = RandomControls(static_cast<int32_t>(vocab), &random);
    ASSERT_EQ(Apply(logits, controls), reference::Controlled(logits, controls)) << "round " << round;
  }
}

// The definition itself against one in float64, step by step as the API documents it.
TEST(ApplyControls, IsCloseToFloat64) {
  std::mt19937 random(4);
  for (int round = 0; round < 1000; ++round) {
    const size_t vocab = 1 + random() % 200;
    const std::vector<float> logits = RandomLogits(vocab, &random);
    const reference::Controls controls = RandomControls(static_cast<int32_t>(vocab), &random);
    const std::vector<float> applied = Apply(logits, controls);
    std::map<int32_t, int> in_output;
    for (int32_t id : controls.output) ++in_output[id];
    for (int32_t id = 0; id < static_cast<int32_t>(vocab); ++id) {
      double expected = logits[id];
      const bool seen =
          in_output.contains(id) || std::count(controls.prompt.begin(), controls.prompt.end(), id) > 0;
      const double repetition = controls.penalties.repetition;
      if (seen) expected = expected > 0 ? expected / repetition : expected * repetition;
      if (in_output.contains(id))
        expected -=
            double{controls.penalties.frequency} * in_output[id] + double{controls.penalties.presence};
      if (controls.bias.contains(id)) expected += double{controls.bias.at(id)};
      const bool masked =
          (!controls.allowed.empty() && !controls.allowed.contains(id)) || controls.banned.contains(id);
      if (masked) {
        ASSERT_EQ(applied[id], -INFINITY);
      } else {
        ASSERT_NEAR(applied[id], expected, 1e-6 * (100 + std::fabs(expected)))
            << "round " << round << ", id " << id;
      }
    }
  }
}

// 250,000 draws each from penalised, biased and masked logits, by chi-square against float64. The bound is
// the 99.99 % quantile for 11 degrees of freedom, more than there ever are; the seed is fixed.
TEST(ApplyControls, DrawsFollowTheControlledSoftmax) {
  const std::vector<float> logits = {0.5, -1, 2, 0, 1.5, -0.5, 0.1, 1, 0.7, -2, 0.3, 0.9};
  const reference::Controls controls[] = {
      {.penalties = {.repetition = 1.7f}, .prompt = {2, 5}, .output = {1, 4}},
      {.penalties = {.presence = 1.0f, .frequency = 0.4f}, .prompt = {0}, .output = {2, 2, 2, 7}},
      {.bias = {{9, 3.0f}, {2, -1.5f}}, .banned = {4, 8}},
      {.bias = {{9, 3.0f}}, .allowed = {0, 1, 2, 3, 9}, .banned = {3}}};
  std::vector<int32_t> scratch;
  for (const reference::Controls& control : controls) {
    const std::vector<float> applied = Apply(logits, control);
    std::vector<int> counts(logits.size());
    constexpr int kDraws = 250000;
    for (uint32_t i = 0; i < kDraws; ++i)
      ++counts[SampleToken(applied, {.temperature = 0.9f, .seed = 77}, i, &scratch)];
    double total = 0, chi_square = 0;
    for (float logit : applied) total += std::exp(double{logit} / 0.9f);
    for (size_t id = 0; id < applied.size(); ++id) {
      const double expected = kDraws * std::exp(double{applied[id]} / 0.9f) / total;
      if (applied[id] == -INFINITY) {
        EXPECT_EQ(counts[id], 0);
      } else {
        chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
      }
    }
    EXPECT_LT(chi_square, 37.4);
  }
}

std::vector<int32_t> TopOf(const std::vector<float>& logits, int32_t count) {
  std::vector<int32_t> top = {7, 7, 7};
  TopIds(logits, count, &top);
  return top;
}

TEST(TopIds, AreTheLargestTiesToTheLowestId) {
  EXPECT_THAT(TopOf({1, 5, 3, 5, -INFINITY, 3}, 3), ElementsAre(1, 3, 2));
  EXPECT_THAT(TopOf({2, 1}, 5), ElementsAre(0, 1));
  EXPECT_THAT(TopOf({2, 1}, 0), IsEmpty());
}

TEST(TopIds, AreTheBeginningOfASort) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> logits = RandomLogits(1 + random() % 500, &random);
    std::vector<int32_t> expected = reference::Ranking(logits);
    const size_t count = random() % 21;
    expected.resize(std::min(count, expected.size()));
    ASSERT_EQ(TopOf(logits, static_cast<int32_t>(count)), expected);
  }
}

}  // namespace
}  // namespace ridge::kernels
