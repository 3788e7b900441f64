// Steps that are submitted before those ahead of them were collected.
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/golden_file.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

constexpr int32_t kNumBlocks = 256;
constexpr SlotId kSlots = 12;
constexpr size_t kSteps = 300;

SlotAttach RandomAttach(SlotId slot, int32_t vocab, std::mt19937* random) {
  const auto one_in = [&](uint32_t n) { return (*random)() % n == 0; };
  SlotAttach attach{slot,
                    {.temperature = one_in(2) ? 0.0f : 0.8f, .seed = (*random)(), .logprobs = one_in(2)}};
  if (attach.sampling.logprobs && one_in(2)) attach.sampling.top_logprobs = 3;
  if (one_in(4)) attach.sampling.presence_penalty = 0.5f;
  if (one_in(4)) {
    attach.controls.banned_ids = {static_cast<TokenId>((*random)() % static_cast<uint32_t>(vocab))};
  }
  return attach;
}

// Random steps, so many of them in flight: sequences come and go, their prompts in pieces of which each may
// have an output, beside others' decode rows; every second stretch is of decode rows alone.
std::vector<StepResult> RunSteps(Backend* backend, size_t in_flight) {
  const int32_t vocab = backend->Info().vocab_size;
  StepDriver driver(backend, kNumBlocks);
  std::mt19937 random(23);
  std::set<SlotId> decoding, attached;
  std::deque<StepTicket> tickets;
  std::vector<StepResult> results;
  for (size_t step = 0; step < kSteps; ++step) {
    const bool mixed = step / 10 % 2 == 0;
    for (SlotId slot = 0; slot < kSlots; ++slot) {
      const uint32_t dice = random() % 8;
      if (mixed && !attached.contains(slot)) {
        if (dice < 6) continue;
        driver.Attach(RandomAttach(slot, vocab, &random));
        attached.insert(slot);
      } else if (mixed && dice == 0) {
        driver.Release(slot);
        attached.erase(slot);
        decoding.erase(slot);
        continue;
      } else if (decoding.contains(slot)) {
        if (dice < 7) driver.AddDecodeRow(slot);
        continue;
      }
      if (!mixed) continue;
      std::vector<TokenId> tokens(1 + random() % 9);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
      const bool has_output = random() % 2 == 0;
      driver.AddRows(slot, tokens, has_output ? 1 : 0);
      if (has_output) decoding.insert(slot);
    }
    tickets.push_back(driver.Submit(step % 7 == 0));
    while (tickets.size() >= in_flight) {
      results.push_back(driver.Collect(tickets.front()));
      tickets.pop_front();
    }
  }
  for (StepTicket ticket : tickets) results.push_back(driver.Collect(ticket));
  return results;
}

TEST(CudaInFlight, StepsGiveWhatTheyGiveOneByOne) {
  const auto source = OpenModel(DataDirectory() + "/tiny-qwen2").value();
  for (const bool graphs : {true, false}) {
    std::vector<StepResult> expected;
    int64_t saturations = 0;
    for (const size_t in_flight : {1, 2, 3, 6}) {
      const auto backend = CudaBackend::Create(*source, {.graphs = graphs}).value();
      ASSERT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = kSlots, .max_step_rows = 128}).ok());
      const std::vector<StepResult> results = RunSteps(backend.get(), in_flight);
      ASSERT_EQ(results.size(), kSteps);
      if (in_flight == 1) {
        expected = results;
        saturations = backend->saturations();
      }
      EXPECT_EQ(backend->saturations(), saturations);
      for (size_t step = 0; step < kSteps; ++step) {
        const StepResult& got = results[step];
        const StepResult& want = expected[step];
        ASSERT_EQ(got.outputs.size(), want.outputs.size()) << step;
        for (size_t i = 0; i < got.outputs.size(); ++i) {
          ASSERT_EQ(got.outputs[i].token, want.outputs[i].token) << step << ", " << in_flight << " in flight";
          ASSERT_EQ(got.outputs[i].logprob, want.outputs[i].logprob) << step;
          ASSERT_EQ(got.outputs[i].num_top, want.outputs[i].num_top) << step;
        }
        ASSERT_EQ(got.top.size(), want.top.size()) << step;
        for (size_t i = 0; i < got.top.size(); ++i) {
          ASSERT_EQ(got.top[i].id, want.top[i].id) << step;
          ASSERT_EQ(got.top[i].logprob, want.top[i].logprob) << step;
        }
        ASSERT_TRUE(got.logits == want.logits) << step << ", " << in_flight << " in flight";
      }
    }
  }
}

}  // namespace
}  // namespace ridge::worker
