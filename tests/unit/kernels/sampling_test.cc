#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/target.h"
#include "kernels/reference/sampling.h"

namespace ridge::kernels {
namespace {

using ::testing::UnorderedElementsAre;

std::vector<int32_t> scratch;

// How often each id came in `draws` draws at different positions.
std::map<int32_t, int> Draw(const std::vector<float>& logits, const SamplerSettings& settings, int draws) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[SampleToken(logits, settings, i, &scratch)];
  return counts;
}

std::vector<int32_t> Ids(const std::map<int32_t, int>& counts) {
  std::vector<int32_t> ids;
  for (const auto& [id, count] : counts) ids.push_back(id);
  return ids;
}

TEST(SampleToken, TakesTheLowestOfEqualMaximaWhenGreedy) {
  EXPECT_EQ(SampleToken(std::vector<float>{1, 5, 3, 5}, {.temperature = 0}, 7, &scratch), 1);
}

TEST(SampleToken, DependsOnSeedChoiceAndPositionAlone) {
  std::mt19937 random(5);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = std::normal_distribution<float>(0, 1)(random);
  const SamplerSettings settings{.seed = 9, .choice = 1};
  const int32_t token = SampleToken(logits, settings, 33, &scratch);
  EXPECT_EQ(SampleToken(logits, settings, 33, &scratch), token);
  std::set<int32_t> others;
  others.insert(SampleToken(logits, {.seed = 10, .choice = 1}, 33, &scratch));
  others.insert(SampleToken(logits, {.seed = 9, .choice = 2}, 33, &scratch));
  others.insert(SampleToken(logits, settings, 34, &scratch));
  EXPECT_EQ(others.count(token), 0u);
}

// Chi-square of a million draws against the softmax in float64. The bound is the 99.99 % quantile for 15
// degrees of freedom; the seed is fixed, so that the test cannot fail by chance.
TEST(SampleToken, FollowsTheSoftmax) {
  const std::vector<float> logits = {0.5, -1, 2,   0,   1.5,  -0.5, 0.1, 1,
                                     0.7, -2, 0.3, 0.9, -0.3, 1.2,  0.2, -1.5};
  for (const float temperature : {0.7f, 1.0f, 1.8f}) {
    const int draws = 1000000;
    std::map<int32_t, int> counts = Draw(logits, {.temperature = temperature, .seed = 123}, draws);
    double total = 0, chi_square = 0;
    for (float logit : logits) total += std::exp(static_cast<double>(logit) / temperature);
    for (size_t id = 0; id < logits.size(); ++id) {
      const double expected = draws * std::exp(static_cast<double>(logits[id]) / temperature) / total;
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    EXPECT_LT(chi_square, 44.3) << "temperature " << temperature;
  }
}

// What is skipped and not sorted must not show: the plain sampler draws the same token, whatever the shape of
// the distribution, the filters and the ties.
TEST(SampleToken, DrawsThePlainSamplersToken) {
  if (cpu::TargetName().empty()) GTEST_SKIP() << "this machine cannot run the CPU kernels";
  std::mt19937 random(11);
  const auto pick = [&](std::vector<float> values) { return values[random() % values.size()]; };
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(pick({1, 2, 7, 100, 1000}));
    const float scale = pick({0.01f, 1, 4, 40});
    const bool ties = random() % 2 == 0;
    for (float& logit : logits) {
      logit = std::normal_distribution<float>(0, scale)(random);
      if (ties) logit = std::round(logit);
      if (random() % 50 == 0) logit = -INFINITY;
    }
    const SamplerSettings settings{.temperature = pick({0, 0.1f, 0.7f, 1, 2}),
                                   .top_p = pick({1, 1, 0.0f, 0.3f, 0.9f, 0.999f}),
                                   .top_k = static_cast<int32_t>(pick({0, 0, 1, 5, 50, 2000})),
                                   .min_p = pick({0, 0, 0.02f, 0.5f, 1}),
                                   .seed = random() * uint64_t{0x100000001},
                                   .choice = static_cast<uint32_t>(random() % 3)};
    const uint32_t position = random();
    if (*std::max_element(logits.begin(), logits.end()) == -INFINITY) continue;
    ASSERT_EQ(SampleToken(logits, settings, position, &scratch),
              reference::SampleToken(logits, settings, position))
        << "round " << round;
  }
}

TEST(SampleToken, TakesTheArgMaxWhereTheTemperatureOverflowsLogits) {
  EXPECT_EQ(SampleToken(std::vector<float>{1, 5, 3}, {.temperature = 1e-39f}, 7, &scratch), 1);
  EXPECT_EQ(SampleToken(std::vector<float>{-7, -5, -9}, {.temperature = 1e-39f}, 7, &scratch), 1);
}

TEST(SampleToken, TopKKeepsTheLargestTiesToTheLowestId) {
  const std::vector<float> logits = {1, 2, 2, 2, 0};
  EXPECT_THAT(Ids(Draw(logits, {.top_k = 2, .seed = 1}, 2000)), UnorderedElementsAre(1, 2));
  EXPECT_EQ(Ids(Draw(logits, {.top_k = 5, .seed = 1}, 20000)).size(), 5u);
  EXPECT_THAT(Ids(Draw(logits, {.top_k = 1, .seed = 1}, 100)), UnorderedElementsAre(1));
}

TEST(SampleToken, TopPKeepsTheCrossingToken) {
  // Probabilities 0.5, 0.3, 0.2.
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_THAT(Ids(Draw(logits, {.top_p = 0.4f, .seed = 1}, 2000)), UnorderedElementsAre(0));
  EXPECT_THAT(Ids(Draw(logits, {.top_p = 0.6f, .seed = 1}, 2000)), UnorderedElementsAre(0, 1));
  EXPECT_THAT(Ids(Draw(logits, {.top_p = 0.85f, .seed = 1}, 2000)), UnorderedElementsAre(0, 1, 2));
  EXPECT_THAT(Ids(Draw(logits, {.top_p = 1e-6f, .seed = 1}, 2000)), UnorderedElementsAre(0));
}

TEST(SampleToken, TopPIsOfWhatTopKLeaves) {
  // After top_k = 2 the probabilities are 0.625 and 0.375.
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_THAT(Ids(Draw(logits, {.top_p = 0.6f, .top_k = 2, .seed = 1}, 2000)), UnorderedElementsAre(0));
}

TEST(SampleToken, MinPIsRelativeToTheMostLikely) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_THAT(Ids(Draw(logits, {.min_p = 0.5f, .seed = 1}, 2000)), UnorderedElementsAre(0, 1));
  EXPECT_THAT(Ids(Draw(logits, {.min_p = 1.0f, .seed = 1}, 2000)), UnorderedElementsAre(0));
}

TEST(GumbelFromWord, IsFiniteAtBothEndsAndWithinItsBound) {
  EXPECT_LE(GumbelFromWord(0), kMaxGumbel);
  EXPECT_GT(GumbelFromWord(0), 22.8f);
  EXPECT_GT(GumbelFromWord(0xFFFFFFFFu), -3.2f);
  for (uint32_t word : {1u, 0x3FFFFFFFu, 0x40000000u, 0x80000000u, 0xDEADBEEFu}) {
    const double v = (word + 0.5) / 4294967296.0;
    EXPECT_NEAR(GumbelFromWord(word), -std::log(-std::log1p(-v)), 4e-6) << word;
  }
}

}  // namespace
}  // namespace ridge::kernels
