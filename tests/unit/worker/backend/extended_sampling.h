// What a backend with extended_sampling must do, for tests of each backend: tokens are those of the plain
// sampler on the logits that the backend returns, log-probabilities those of the raw logits, bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/sampling.h"
#include "tests/unit/worker/backend/step_driver.h"

namespace ridge::worker {

// A sequence with controls of every kind, and what the plain definitions say of it.
struct ControlledSequence {
  SamplingParams sampling;
  TokenControls controls;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;

  // The token that follows prompt and output, whose last row gave `logits`.
  TokenId NextToken(const std::vector<float>& logits, const std::vector<TokenId>& banned) const {
    namespace reference = kernels::reference;
    reference::Controls all;
    all.penalties = {sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty};
    all.prompt = prompt;
    all.output = output;
    for (const TokenBias& entry : controls.bias) all.bias[entry.id] = entry.bias;
    all.allowed.insert(controls.allowed_ids.begin(), controls.allowed_ids.end());
    all.banned.insert(controls.banned_ids.begin(), controls.banned_ids.end());
    all.banned.insert(banned.begin(), banned.end());
    if (static_cast<int32_t>(output.size()) < controls.min_tokens)
      all.banned.insert(controls.late_ids.begin(), controls.late_ids.end());
    kernels::SamplerSettings settings;
    settings.temperature = sampling.temperature;
    settings.top_p = sampling.top_p;
    settings.top_k = sampling.top_k;
    settings.min_p = sampling.min_p;
    settings.seed = sampling.seed;
    settings.choice = sampling.choice;
    return reference::SampleToken(reference::Controlled(logits, all), settings,
                                  static_cast<uint32_t>(prompt.size() + output.size()));
  }

  SlotAttach Attach(SlotId slot) const {
    SlotAttach attach{slot, sampling};
    attach.controls = controls;
    attach.prompt_tokens = static_cast<int32_t>(prompt.size());
    if (sampling.has_penalties()) {
      attach.history = prompt;
      attach.history.insert(attach.history.end(), output.begin(), output.end());
    }
    return attach;
  }
};

class ExtendedSampling {
 public:
  ExtendedSampling(Backend* backend, int32_t num_blocks)
      : vocab_(backend->Info().vocab_size), driver_(backend, num_blocks) {}

  // `count` sequences at once, each with its own controls: their prompts are scored in chunks, then they
  // generate, with other bans in every step; halfway each is released and comes back with its history.
  void Run(int32_t count, uint32_t seed) {
    random_.seed(seed);
    std::vector<ControlledSequence> sequences;
    for (int32_t i = 0; i < count; ++i) sequences.push_back(RandomSequence(i));
    for (SlotId slot = 0; slot < count; ++slot) driver_.Attach(sequences[slot].Attach(slot));
    for (SlotId slot = 0; slot < count; ++slot) Prefill(slot, &sequences[slot]);
    for (int step = 0; step < 6; ++step) Decode(&sequences);
    for (SlotId slot = 0; slot < count; ++slot) driver_.Release(slot);
    for (SlotId slot = 0; slot < count; ++slot) driver_.Attach(sequences[slot].Attach(slot));
    for (SlotId slot = 0; slot < count; ++slot) Resume(slot, &sequences[slot]);
    for (int step = 0; step < 6; ++step) Decode(&sequences);
    for (SlotId slot = 0; slot < count; ++slot) driver_.Release(slot);
    driver_.Run();
  }

 private:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_()) % below; }
  TokenId DrawId() { return static_cast<TokenId>(Draw(static_cast<uint32_t>(vocab_))); }
  std::vector<TokenId> DrawIds(uint32_t count) {
    std::set<TokenId> ids;
    for (uint32_t i = 0; i < count; ++i) ids.insert(DrawId());
    return {ids.begin(), ids.end()};
  }

  ControlledSequence RandomSequence(int32_t i) {
    ControlledSequence sequence;
    for (uint32_t length = 2 + Draw(40); length > 0; --length) sequence.prompt.push_back(DrawId());
    SamplingParams& sampling = sequence.sampling;
    sampling.temperature = i % 3 == 0 ? 0.0f : 0.5f + 0.5f * static_cast<float>(Draw(3));
    if (i % 4 == 1) sampling.top_k = 10;
    if (i % 5 == 1) sampling.top_p = 0.9f;
    sampling.seed = random_();
    sampling.choice = Draw(3);
    sampling.logprobs = Draw(3) > 0;
    sampling.top_logprobs = sampling.logprobs ? static_cast<int32_t>(Draw(kMaxTopLogprobs + 1)) : 0;
    sampling.prompt_top_logprobs = static_cast<int32_t>(Draw(4));
    if (i % 2 == 0) {
      sampling.repetition_penalty = 1.3f;
      sampling.presence_penalty = 0.25f * static_cast<float>(Draw(4));
      sampling.frequency_penalty = 0.7f;
    }
    TokenControls& controls = sequence.controls;
    if (Draw(3) == 0) {
      for (TokenId id : DrawIds(9))
        controls.bias.push_back({id, 0.5f * static_cast<float>(Draw(40)) - 10.0f});
    }
    if (Draw(3) == 0) controls.allowed_ids = DrawIds(60);
    if (Draw(3) == 0) controls.banned_ids = DrawIds(20);
    if (Draw(3) == 0) {
      controls.late_ids = DrawIds(20);
      controls.min_tokens = static_cast<int32_t>(Draw(12));
    }
    return sequence;
  }

  // The prompt in two chunks, all its tokens but the first scored.
  void Prefill(SlotId slot, ControlledSequence* sequence) {
    const std::vector<TokenId>& prompt = sequence->prompt;
    const size_t cut = 1 + Draw(static_cast<uint32_t>(prompt.size() - 1));
    driver_.AddScoredRows(slot, {prompt.begin(), prompt.begin() + static_cast<int64_t>(cut)},
                          {prompt.begin() + 1, prompt.begin() + static_cast<int64_t>(cut) + 1}, 0);
    ExpectScored(*sequence, driver_.Run(true), 1, cut);
    driver_.AddScoredRows(slot, {prompt.begin() + static_cast<int64_t>(cut), prompt.end()},
                          {prompt.begin() + static_cast<int64_t>(cut) + 1, prompt.end()}, 1);
    const StepResult result = driver_.Run(true);
    ExpectScored(*sequence, result, cut + 1, prompt.size() - cut - 1);
    size_t top = 0;
    for (size_t i = 0; i + 1 < result.outputs.size(); ++i)
      top += static_cast<size_t>(result.outputs[i].num_top);
    TakeToken(result, result.outputs.size() - 1, &top, {}, sequence);
  }

  // Prompt and output in one piece.
  void Resume(SlotId slot, ControlledSequence* sequence) {
    std::vector<TokenId> tokens = sequence->prompt;
    tokens.insert(tokens.end(), sequence->output.begin(), sequence->output.end());
    driver_.AddRows(slot, tokens, 1);
    const StepResult result = driver_.Run(true);
    size_t top = 0;
    TakeToken(result, 0, &top, {}, sequence);
  }

  // Two steps, the second submitted before the first is collected.
  void Decode(std::vector<ControlledSequence>* sequences) {
    std::vector<StepTicket> tickets;
    std::vector<std::vector<TokenId>> banned;
    for (int step = 0; step < 2; ++step) {
      for (size_t i = 0; i < sequences->size(); ++i) {
        banned.push_back(i % 4 == 3 ? DrawIds(5) : std::vector<TokenId>());
        driver_.AddDecodeRow(static_cast<SlotId>(i), banned.back());
      }
      tickets.push_back(driver_.Submit(true));
    }
    size_t next = 0;
    for (StepTicket ticket : tickets) {
      const StepResult result = driver_.Collect(ticket);
      size_t top = 0;
      for (size_t i = 0; i < sequences->size(); ++i)
        TakeToken(result, i, &top, banned[next++], &(*sequences)[i]);
      EXPECT_EQ(top, result.top.size());
    }
  }

  std::vector<float> LogitsOf(const StepResult& result, size_t output) const {
    const auto begin = result.logits.begin() + static_cast<int64_t>(output) * vocab_;
    return {begin, begin + vocab_};
  }

  void TakeToken(const StepResult& result, size_t output, size_t* top, const std::vector<TokenId>& banned,
                 ControlledSequence* sequence) {
    const std::vector<float> logits = LogitsOf(result, output);
    const RowOutput& row = result.outputs[output];
    EXPECT_EQ(row.token, sequence->NextToken(logits, banned));
    const SamplingParams& sampling = sequence->sampling;
    if (sampling.logprobs) {
      ExpectLogprobs(logits, row, sampling.top_logprobs, result, top);
    } else {
      EXPECT_EQ(row.logprob, 0.0f);
      EXPECT_EQ(row.num_top, 0);
    }
    sequence->output.push_back(row.token);
  }

  void ExpectScored(const ControlledSequence& sequence, const StepResult& result, size_t first,
                    size_t count) {
    ASSERT_GE(result.outputs.size(), count);
    size_t top = 0;
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(result.outputs[i].token, sequence.prompt[first + i]);
      ExpectLogprobs(LogitsOf(result, i), result.outputs[i], sequence.sampling.prompt_top_logprobs, result,
                     &top);
    }
  }

  void ExpectLogprobs(const std::vector<float>& logits, const RowOutput& row, int32_t num_top,
                      const StepResult& result, size_t* top) {
    namespace reference = kernels::reference;
    const float log_sum = reference::LogSumExp(reference::Mode::kContract, logits.data(), vocab_);
    EXPECT_EQ(row.logprob, logits[static_cast<size_t>(row.token)] - log_sum);
    ASSERT_EQ(row.num_top, num_top);
    const std::vector<TokenId> ranking = reference::Ranking(logits);
    for (size_t i = 0; i < static_cast<size_t>(num_top); ++i, ++*top) {
      EXPECT_EQ(result.top[*top].id, ranking[i]);
      EXPECT_EQ(result.top[*top].logprob, logits[static_cast<size_t>(ranking[i])] - log_sum);
    }
  }

  const int32_t vocab_;
  StepDriver driver_;
  std::mt19937 random_;
};

// A slot that forks from another one at any position goes on as one that computed everything itself.
inline void ExpectForksGoOn(Backend* backend, int32_t num_blocks) {
  StepDriver driver(backend, num_blocks);
  const SamplingParams sampling = {.seed = 5, .logprobs = true};
  std::vector<TokenId> prompt;
  for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<TokenId>(i * 37 % backend->Info().vocab_size));
  driver.Attach(0, sampling);
  driver.AddRows(0, prompt, 1);
  driver.Run();
  for (const int32_t position : {1, 15, 16, 17, 31, 32, 39}) {
    driver.Attach(1, sampling);
    driver.Fork(0, 1, position);
    driver.AddRows(1, {prompt.begin() + position, prompt.end()}, 1);
    driver.Attach(2, sampling);
    driver.AddRows(2, prompt, 1);
    for (int step = 0; step < 4; ++step) {
      const StepResult result = driver.Run(true);
      ASSERT_EQ(result.outputs.size(), 2u);
      EXPECT_EQ(result.outputs[0].token, result.outputs[1].token)
          << "position " << position << ", step " << step;
      EXPECT_EQ(result.outputs[0].logprob, result.outputs[1].logprob);
      for (SlotId slot : {1, 2}) driver.AddDecodeRow(slot);
    }
    driver.Run();
    // What was shared is as it was.
    for (SlotId slot : {1, 2}) driver.Release(slot);
  }
}

}  // namespace ridge::worker
