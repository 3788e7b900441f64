// Sampling on the card draws the plain sampler's tokens, with the reference's log-probabilities, bit for bit.
#include "kernels/cuda/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/sampling.h"
#include "tests/gpu/device_buffer.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;

struct Row {
  std::vector<float> logits;
  SamplerSettings settings;
  int32_t position;
  bool logprobs = true;
};

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> last_tokens;
};

SlotSampling ToSlot(const Row& row) {
  const SamplerSettings& s = row.settings;
  return {s.seed, s.choice, s.temperature, s.top_p, s.min_p, s.top_k, row.logprobs ? 1 : 0};
}

// Row i belongs to slot i.
Drawn Sample(const std::vector<Row>& rows) {
  const auto vocab = static_cast<int32_t>(rows[0].logits.size());
  const int32_t stride = (vocab + 3) / 4 * 4;
  const auto count = static_cast<int32_t>(rows.size());
  std::vector<float> logits;
  std::vector<SampleRow> targets;
  std::vector<SlotSampling> slots;
  for (const Row& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    logits.resize(targets.size() * stride + stride, NAN);
    targets.push_back({static_cast<int32_t>(slots.size()), row.position});
    slots.push_back(ToSlot(row));
  }
  DeviceBuffer<float> device_logits(logits), logprobs(rows.size());
  DeviceBuffer<SampleRow> device_rows(targets);
  DeviceBuffer<SlotSampling> device_slots(slots);
  DeviceBuffer<int32_t> last(rows.size()), tokens(rows.size());
  DeviceBuffer<uint8_t> workspace(SamplingWorkspaceBytes(count, vocab));
  const SamplingArgs args = {
      device_logits.data(), stride,      count,         vocab,           device_rows.data(),
      device_slots.data(),  last.data(), tokens.data(), logprobs.data(), workspace.data()};
  EXPECT_CUDA_OK(LaunchSampling(args, nullptr));
  return {tokens.Download(), logprobs.Download(), last.Download()};
}

int32_t PlainToken(const Row& row) {
  const float top = *std::max_element(row.logits.begin(), row.logits.end());
  SamplerSettings settings = row.settings;
  if (!std::isfinite(top / settings.temperature)) settings.temperature = 0.0f;
  return reference::SampleToken(row.logits, settings, static_cast<uint32_t>(row.position));
}

void ExpectPlainSamplersTokens(const std::vector<Row>& rows) {
  const Drawn drawn = Sample(rows);
  EXPECT_EQ(drawn.last_tokens, drawn.tokens);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t token = PlainToken(rows[i]);
    const SamplerSettings& s = rows[i].settings;
    ASSERT_EQ(drawn.tokens[i], token)
        << "row " << i << ", temperature " << s.temperature << ", top_k " << s.top_k << ", top_p " << s.top_p
        << ", min_p " << s.min_p << ", vocabulary " << rows[i].logits.size();
    const auto size = static_cast<int64_t>(rows[i].logits.size());
    const float logprob =
        rows[i].logits[token] - reference::LogSumExp(reference::Mode::kContract, rows[i].logits.data(), size);
    ASSERT_EQ(drawn.logprobs[i], rows[i].logprobs ? logprob : 0.0f) << "row " << i;
  }
}

// Rows of every shape of distribution, with ties, with impossible ids, with every filter.
std::vector<Row> RandomRows(size_t vocab, int count, uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](const std::vector<float>& values) { return values[random() % values.size()]; };
  std::vector<Row> rows;
  while (static_cast<int>(rows.size()) < count) {
    Row row;
    row.logits.resize(vocab);
    const float scale = pick({0.0f, 0.01f, 1, 3, 8, 40}), center = pick({0, 0, -9, 20});
    const bool ties = random() % 3 == 0;
    std::normal_distribution<float> normal;
    for (float& logit : row.logits) {
      logit = center + scale * normal(random);
      if (ties) logit = std::round(logit);
      if (random() % 50 == 0) logit = -INFINITY;
    }
    if (*std::max_element(row.logits.begin(), row.logits.end()) == -INFINITY) continue;
    row.settings = {.temperature = pick({0, 0.1f, 0.7f, 1, 1, 2}),
                    .top_p = pick({1, 1, 0.0f, 0.3f, 0.9f, 0.999f}),
                    .top_k = static_cast<int32_t>(pick({0, 0, 1, 5, 50, 2000, 100000})),
                    .min_p = pick({0, 0, 0.02f, 0.5f, 1}),
                    .seed = random() * uint64_t{0x100000001},
                    .choice = static_cast<uint32_t>(random() % 3)};
    row.position = static_cast<int32_t>(random() >> 2);
    row.logprobs = random() % 4 != 0;
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(Sampling, DrawsThePlainSamplersTokensFromSmallVocabularies) {
  uint32_t seed = 1;
  for (const size_t vocab : {1, 2, 7, 255, 256, 257, 1000, 4096, 4097}) {
    for (int round = 0; round < 4; ++round) ExpectPlainSamplersTokens(RandomRows(vocab, 64, seed++));
  }
}

TEST(Sampling, DrawsThePlainSamplersTokensFromALargeVocabulary) {
  for (uint32_t seed = 100; seed < 104; ++seed) ExpectPlainSamplersTokens(RandomRows(151936, 24, seed));
}

TEST(Sampling, TakesTheLowestOfEqualMaximaWhenGreedy) {
  std::vector<Row> rows(3);
  for (Row& row : rows) {
    row.logits.assign(10000, -0.0f);
    row.settings.temperature = 0.0f;
  }
  rows[0].logits[9000] = rows[0].logits[9999] = 5.0f;
  rows[1].logits[77] = 0.0f;  // equal to -0
  rows[2].logits.assign(10000, -INFINITY);
  EXPECT_EQ(Sample(rows).tokens, (std::vector<int32_t>{9000, 0, 0}));
}

TEST(Sampling, TakesTheArgMaxWhereTheTemperatureOverflowsLogits) {
  std::vector<Row> rows(1);
  rows[0].logits = {1, 5, 3, 0};
  rows[0].settings.temperature = 1e-39f;
  EXPECT_EQ(Sample(rows).tokens[0], 1);
}

TEST(Sampling, SkipsPaddingRowsAndKeepsASlotsLastRow) {
  const std::vector<float> logits = {1, 2, 3, 0, /**/ 9, 2, 3, 0, /**/ 0, 9, 0, 0, /**/ 0, 0, 0, 9};
  DeviceBuffer<float> device_logits(logits), logprobs(4);
  DeviceBuffer<SampleRow> rows(std::vector<SampleRow>{{1, 5}, {0, 8}, {0, 9}, {-1, 0}});
  SlotSampling greedy = {};
  DeviceBuffer<SlotSampling> slots(std::vector<SlotSampling>(2, greedy));
  DeviceBuffer<int32_t> last(std::vector<int32_t>{-7, -7}), tokens(std::vector<int32_t>{-7, -7, -7, -7});
  DeviceBuffer<uint8_t> workspace(SamplingWorkspaceBytes(4, 4));
  ASSERT_CUDA_OK(LaunchSampling({device_logits.data(), 4, 4, 4, rows.data(), slots.data(), last.data(),
                                 tokens.data(), logprobs.data(), workspace.data()},
                                nullptr));
  EXPECT_EQ(tokens.Download(), (std::vector<int32_t>{2, 0, 1, -7}));
  EXPECT_EQ(last.Download(), (std::vector<int32_t>{1, 2}));
}

// One slot a row, each with penalties, biases and masks of its own; every second row also scores a token.
TEST(Sampling, ControlsScoresAndTheMostLikelyTokensAreTheReferences) {
  for (const size_t vocab : {33, 4097, 151936}) {
    std::mt19937 random(static_cast<uint32_t>(vocab));
    std::vector<Row> rows = RandomRows(vocab, 12, 55);
    const auto id = [&] { return static_cast<int32_t>(random() % vocab); };
    const int64_t stride = static_cast<int64_t>((vocab + 3) / 4 * 4),
                  words = MaskWords(static_cast<int64_t>(vocab));
    const auto count = static_cast<int32_t>(rows.size());
    std::vector<reference::Controls> controls(rows.size());
    std::vector<float> logits;
    std::vector<SlotSampling> slots;
    std::vector<SampleRow> targets;
    std::vector<uint32_t> occurrences(rows.size() * vocab),
        masks(rows.size() * 3 * static_cast<size_t>(words));
    std::vector<LogitBias> biases(rows.size() * kMaxBiases);
    for (int32_t i = 0; i < count; ++i) {
      Row& row = rows[static_cast<size_t>(i)];
      reference::Controls& control = controls[static_cast<size_t>(i)];
      control.penalties = {1.3f, 0.5f, 0.25f};
      for (int n = 0; n < 40; ++n) (n % 2 == 0 ? control.prompt : control.output).push_back(id());
      for (int n = 0; n < 5; ++n) control.bias[id()] = static_cast<float>(n) - 2.0f;
      for (int n = 0; n < 8; ++n) control.banned.insert(id());
      slots.push_back(ToSlot(row));
      slots.back().logprobs = 1;
      slots.back().top_logprobs = i % 3 == 0 ? 0 : std::min<int32_t>(kMaxTopLogprobs, i * 2);
      slots.back().prompt_top_logprobs = 4;
      slots.back().repetition_penalty = 1.3f;
      slots.back().presence_penalty = 0.5f;
      slots.back().frequency_penalty = 0.25f;
      slots.back().penalised = 1;
      slots.back().num_biases = static_cast<int32_t>(control.bias.size());
      uint32_t* occurrence = occurrences.data() + static_cast<size_t>(i) * vocab;
      for (int32_t token : control.prompt) occurrence[token] |= kInPrompt;
      for (int32_t token : control.output) ++occurrence[token];
      uint32_t* mask = masks.data() + static_cast<int64_t>(i) * 3 * words;
      std::fill_n(mask, words, ~0u);
      for (int32_t token : control.banned) mask[2 * words + token / 32] |= 1u << (token % 32);
      size_t n = static_cast<size_t>(i) * kMaxBiases;
      for (const auto& [token, bias] : control.bias) biases[n++] = {token, bias};
      for (int output = i % 2; output < 2; ++output) {
        logits.insert(logits.end(), row.logits.begin(), row.logits.end());
        logits.resize(targets.size() * static_cast<size_t>(stride) + static_cast<size_t>(stride), NAN);
        targets.push_back(output == 0 ? SampleRow{i, row.position, id(), 0}
                                      : SampleRow{i, row.position, -1, 1});
      }
    }
    const auto outputs = static_cast<int32_t>(targets.size());
    DeviceBuffer<float> device_logits(logits), logprobs(targets.size()),
        controlled(rows.size() * static_cast<size_t>(stride));
    DeviceBuffer<SampleRow> device_rows(targets);
    DeviceBuffer<SlotSampling> device_slots(slots);
    DeviceBuffer<uint32_t> device_occurrences(occurrences), device_masks(masks);
    DeviceBuffer<LogitBias> device_biases(biases);
    DeviceBuffer<int32_t> last(rows.size()), tokens(targets.size());
    DeviceBuffer<TopLogprob> top(targets.size() * kMaxTopLogprobs);
    DeviceBuffer<uint8_t> workspace(SamplingWorkspaceBytes(outputs, static_cast<int32_t>(vocab)));
    SamplingArgs args = {device_logits.data(),
                         stride,
                         outputs,
                         static_cast<int32_t>(vocab),
                         device_rows.data(),
                         device_slots.data(),
                         last.data(),
                         tokens.data(),
                         logprobs.data(),
                         workspace.data()};
    args.controls = {device_occurrences.data(), device_masks.data(), device_biases.data(), controlled.data()};
    args.top = top.data();
    ASSERT_CUDA_OK(LaunchSampling(args, nullptr));
    const std::vector<int32_t> drawn = tokens.Download();
    const std::vector<float> drawn_logprobs = logprobs.Download();
    const std::vector<TopLogprob> tops = top.Download();
    const std::vector<uint32_t> counted = device_occurrences.Download();
    for (size_t o = 0; o < targets.size(); ++o) {
      const auto slot = static_cast<size_t>(targets[o].slot);
      Row row = rows[slot];
      const float log_sum =
          reference::LogSumExp(reference::Mode::kContract, row.logits.data(), static_cast<int64_t>(vocab));
      const std::vector<float> raw = row.logits;
      row.logits = reference::Controlled(raw, controls[slot]);
      const bool scored = targets[o].target >= 0;
      const int32_t expected = scored ? targets[o].target : PlainToken(row);
      ASSERT_EQ(drawn[o], expected) << "vocabulary " << vocab << ", output " << o;
      EXPECT_EQ(drawn_logprobs[o], raw[static_cast<size_t>(expected)] - log_sum);
      const std::vector<int32_t> ranking = reference::Ranking(raw);
      const int32_t num_top = scored ? 4 : slots[slot].top_logprobs;
      for (int32_t rank = 0; rank < num_top; ++rank) {
        const TopLogprob& entry = tops[o * kMaxTopLogprobs + static_cast<size_t>(rank)];
        ASSERT_EQ(entry.id, ranking[static_cast<size_t>(rank)]) << "output " << o << ", rank " << rank;
        EXPECT_EQ(entry.logprob, raw[static_cast<size_t>(entry.id)] - log_sum);
      }
      if (scored) continue;
      const size_t at = slot * vocab + static_cast<size_t>(expected);
      EXPECT_EQ(counted[at], occurrences[at] + 1);
    }
  }
}

TEST(Sampling, CountsTokensOfPromptAndOutput) {
  DeviceBuffer<int32_t> tokens(std::vector<int32_t>{3, 5, 3, 5, 5, 7});
  DeviceBuffer<uint32_t> occurrences(std::vector<uint32_t>(8, 0));
  ASSERT_CUDA_OK(LaunchCountTokens(tokens.data(), 6, 3, occurrences.data(), nullptr));
  EXPECT_EQ(occurrences.Download(), (std::vector<uint32_t>{0, 0, 0, kInPrompt, 0, kInPrompt | 2, 0, 1}));
}

TEST(Sampling, OtherRowsChangeNothing) {
  const std::vector<Row> rows = RandomRows(30000, 33, 77);
  const Drawn together = Sample(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Drawn alone = Sample({rows[i]});
    EXPECT_EQ(alone.tokens[0], together.tokens[i]);
    EXPECT_EQ(alone.logprobs[0], together.logprobs[i]);
  }
}

// Chi-square of a million draws against the filtered softmax in float64. The bound is the 99.99 % quantile
// for 15 degrees of freedom; the seed is fixed, so that the test cannot fail by chance.
TEST(Sampling, FollowsTheFilteredSoftmax) {
  const std::vector<float> shape = {0.5, -1, 2,   0,   1.5,  -0.5, 0.1, 1,
                                    0.7, -2, 0.3, 0.9, -0.3, 1.2,  0.2, -1.5};
  const int draws = 1 << 20, batch = 1 << 13;
  for (const SamplerSettings& settings :
       {SamplerSettings{.temperature = 0.7f, .seed = 123}, SamplerSettings{.temperature = 1.8f, .seed = 123},
        SamplerSettings{.top_p = 0.8f, .seed = 5}, SamplerSettings{.top_k = 6, .seed = 6},
        SamplerSettings{.min_p = 0.2f, .seed = 7}}) {
    const std::vector<int32_t> kept = reference::KeptIds(shape, settings);
    std::vector<float> logits;
    for (int i = 0; i < batch; ++i) logits.insert(logits.end(), shape.begin(), shape.end());
    DeviceBuffer<float> device_logits(logits), logprobs(batch);
    DeviceBuffer<SlotSampling> slots(std::vector<SlotSampling>{ToSlot({shape, settings, 0, false})});
    DeviceBuffer<int32_t> last(1), tokens(batch);
    DeviceBuffer<uint8_t> workspace(SamplingWorkspaceBytes(batch, 16));
    std::vector<int64_t> counts(shape.size());
    for (int begin = 0; begin < draws; begin += batch) {
      std::vector<SampleRow> targets;
      for (int i = 0; i < batch; ++i) targets.push_back({0, begin + i});
      DeviceBuffer<SampleRow> rows(targets);
      ASSERT_CUDA_OK(LaunchSampling({device_logits.data(), 16, batch, 16, rows.data(), slots.data(),
                                     last.data(), tokens.data(), logprobs.data(), workspace.data()},
                                    nullptr));
      for (int32_t token : tokens.Download()) ++counts[token];
    }
    double total = 0, chi_square = 0;
    for (int32_t id : kept) total += std::exp(static_cast<double>(shape[id]) / settings.temperature);
    for (int32_t id : kept) {
      const double expected = draws * std::exp(static_cast<double>(shape[id]) / settings.temperature) / total;
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
      counts[id] = 0;
    }
    EXPECT_LT(chi_square, 44.3) << "top_p " << settings.top_p << ", top_k " << settings.top_k;
    for (int64_t count : counts) EXPECT_EQ(count, 0) << "an id that is not kept was drawn";
  }
}

}  // namespace
}  // namespace ridge::kernels::cuda
