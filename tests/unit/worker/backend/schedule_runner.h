// Many requests through a backend by a schedule of steps, for tests that compare what each of them got.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/step_driver.h"

namespace ridge::worker {

inline constexpr int32_t kNumRequests = 64;
inline constexpr int32_t kGenerated = 6;
inline constexpr int32_t kStepRows = 1024;
inline constexpr int32_t kNumBlocks = 1024;

struct Request {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<uint32_t> logits;  // their bits, of every token, one after the other

  bool operator==(const Answer&) const = default;
};

struct Schedule {
  int32_t batch = 1;       // sequences that run at once
  int32_t chunk = 100000;  // most rows of a prefill in one step
  uint32_t seed = 1;       // of the order of arrival and of the block ids
  bool return_logits = true;
};

// Prompts of 1 to 400 tokens, the long ones rare; every third request greedy, the others sampled in different
// ways.
inline std::vector<Request> MakeRequests(int32_t vocab_size, int32_t count = kNumRequests) {
  std::mt19937 random(7);
  std::vector<Request> requests(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    const int32_t length =
        i % 16 == 5 ? 250 + static_cast<int32_t>(random() % 150) : 1 + static_cast<int32_t>(random() % 40);
    for (int32_t t = 0; t < length; ++t) {
      requests[i].prompt.push_back(static_cast<TokenId>(random() % static_cast<uint32_t>(vocab_size)));
    }
    SamplingParams& sampling = requests[i].sampling;
    sampling.temperature = i % 3 == 0 ? 0.0f : 0.7f + 0.1f * static_cast<float>(i % 5);
    if (i % 4 == 1) sampling.top_k = 20;
    if (i % 4 == 2) sampling.top_p = 0.9f;
    if (i % 5 == 1) sampling.min_p = 0.05f;
    sampling.seed = 1000 + static_cast<uint64_t>(i);
    sampling.logprobs = i % 2 == 0;
  }
  return requests;
}

// Continuous batching in its plainest form: decode rows and prefill chunks share every step.
class ScheduleRunner {
 public:
  ScheduleRunner(Backend* backend, const std::vector<Request>& requests, const Schedule& schedule)
      : requests_(requests),
        schedule_(schedule),
        driver_(backend, kNumBlocks, schedule.seed),
        answers_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) order_.push_back(i);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(schedule.seed));
    slots_.resize(static_cast<size_t>(schedule.batch));
  }

  std::vector<Answer> Run() {
    while (finished_ < requests_.size()) Step();
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].used) driver_.Release(static_cast<SlotId>(slot));
    }
    driver_.Run();
    return std::move(answers_);
  }

 private:
  struct SlotUse {
    bool used = false;
    bool done = false;
    size_t request = 0;
    size_t prefilled = 0;
  };

  void Step() {
    std::vector<size_t> outputs;  // requests, in the order of output rows
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      Refill(slot);
      if (slots_[slot].used && !slots_[slot].done) AddRows(slot, &outputs);
    }
    const StepResult result = driver_.Run(schedule_.return_logits);
    ASSERT_EQ(result.outputs.size(), outputs.size());
    const size_t vocab = outputs.empty() ? 0 : result.logits.size() / outputs.size();
    for (size_t i = 0; i < outputs.size(); ++i) {
      Answer& answer = answers_[outputs[i]];
      answer.tokens.push_back(result.outputs[i].token);
      answer.logprobs.push_back(result.outputs[i].logprob);
      const auto logits = result.logits.begin() + static_cast<int64_t>(i * vocab);
      std::transform(logits, logits + static_cast<int64_t>(vocab), std::back_inserter(answer.logits),
                     std::bit_cast<uint32_t, float>);
    }
    for (SlotUse& use : slots_) {
      if (!use.used || use.done || answers_[use.request].tokens.size() < kGenerated) continue;
      use.done = true;
      ++finished_;
    }
  }

  void Refill(size_t slot) {
    SlotUse& use = slots_[slot];
    if (use.used && !use.done) return;
    if (next_ == order_.size()) return;
    if (use.used) driver_.Release(static_cast<SlotId>(slot));
    use = {.used = true, .request = order_[next_++]};
    driver_.Attach(static_cast<SlotId>(slot), requests_[use.request].sampling);
  }

  void AddRows(size_t slot, std::vector<size_t>* outputs) {
    SlotUse& use = slots_[slot];
    const std::vector<TokenId>& prompt = requests_[use.request].prompt;
    const int32_t room = kStepRows - driver_.planned_rows();
    if (room <= 0) return;
    if (use.prefilled == prompt.size()) {
      driver_.AddDecodeRow(static_cast<SlotId>(slot));
      outputs->push_back(use.request);
      return;
    }
    const int32_t rows =
        std::min({schedule_.chunk, static_cast<int32_t>(prompt.size() - use.prefilled), room});
    const auto begin = prompt.begin() + static_cast<int64_t>(use.prefilled);
    use.prefilled += static_cast<size_t>(rows);
    const bool last = use.prefilled == prompt.size();
    driver_.AddRows(static_cast<SlotId>(slot), std::vector<TokenId>(begin, begin + rows), last ? 1 : 0);
    if (last) outputs->push_back(use.request);
  }

  const std::vector<Request>& requests_;
  const Schedule schedule_;
  StepDriver driver_;
  std::vector<size_t> order_;
  size_t next_ = 0;
  size_t finished_ = 0;
  std::vector<SlotUse> slots_;
  std::vector<Answer> answers_;
};

}  // namespace ridge::worker
