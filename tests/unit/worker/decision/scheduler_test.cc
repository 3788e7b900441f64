#include "worker/decision/scheduler.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

std::unique_ptr<Sequence> MakeSequence(int32_t prompt_tokens, int32_t max_tokens) {
  auto sequence = std::make_unique<Sequence>();
  for (int32_t i = 0; i < prompt_tokens; ++i) sequence->spec.prompt.push_back(i);
  sequence->spec.max_tokens = max_tokens;
  return sequence;
}

void Collect(const ScheduledStep& step) {
  for (Sequence* sequence : step.sequences) --sequence->steps_in_flight;
}

TEST(Scheduler, PlansNothingWithoutSequences) {
  BlockPool pool(4);
  Scheduler scheduler({.max_running = 2, .step_tokens = 8, .chunk_tokens = 8}, &pool);
  EXPECT_TRUE(scheduler.Plan().empty());
}

TEST(Scheduler, CutsAPromptIntoChunksAndWantsATokenOfTheLastRowOnly) {
  BlockPool pool(4);
  Scheduler scheduler({.max_running = 2, .step_tokens = 64, .chunk_tokens = 8}, &pool);
  auto sequence = MakeSequence(20, 4);
  scheduler.Add(sequence.get());

  std::vector<std::pair<int32_t, int32_t>> chunks;
  for (int i = 0; i < 3; ++i) {
    const ScheduledStep step = scheduler.Plan();
    ASSERT_EQ(step.plan.segments.size(), 1u);
    const Segment& segment = step.plan.segments[0];
    chunks.emplace_back(segment.first_position, segment.num_rows);
    EXPECT_EQ(segment.num_outputs, i == 2 ? 1 : 0);
    EXPECT_EQ(step.plan.tokens.front(), segment.first_position);
    EXPECT_FALSE(segment.first_row_from_slot);
  }
  EXPECT_EQ(chunks, (std::vector<std::pair<int32_t, int32_t>>{{0, 8}, {8, 8}, {16, 4}}));

  const ScheduledStep decode = scheduler.Plan();
  ASSERT_EQ(decode.plan.segments.size(), 1u);
  EXPECT_TRUE(decode.plan.segments[0].first_row_from_slot);
  EXPECT_EQ(decode.plan.segments[0].first_position, 20);
  EXPECT_EQ(decode.decode_rows, 1);
}

TEST(Scheduler, AttachesWithAllBlocksUpToTheLimit) {
  BlockPool pool(8);
  Scheduler scheduler({.max_running = 2, .step_tokens = 64, .chunk_tokens = 64}, &pool);
  auto sequence = MakeSequence(20, 30);  // 49 positions are written at most: 4 blocks
  scheduler.Add(sequence.get());
  const ScheduledStep step = scheduler.Plan();
  EXPECT_EQ(step.plan.attaches.size(), 1u);
  EXPECT_EQ(step.plan.appends.size(), 4u);
  EXPECT_EQ(pool.free_blocks(), 4);
  EXPECT_EQ(step.admitted, std::vector<Sequence*>{sequence.get()});
}

TEST(Scheduler, PutsDecodesFirstThenRunningPrefillsThenAdmissionsUnderTheBudget) {
  BlockPool pool(64);
  Scheduler scheduler({.max_running = 4, .step_tokens = 16, .chunk_tokens = 16}, &pool);
  auto decoding = MakeSequence(2, 10);
  auto long_prompt = MakeSequence(40, 10);
  auto late = MakeSequence(5, 10);
  scheduler.Add(decoding.get());
  scheduler.Plan();
  scheduler.Add(long_prompt.get());
  scheduler.Plan();
  scheduler.Add(late.get());

  ScheduledStep step = scheduler.Plan();
  ASSERT_EQ(step.sequences, (std::vector<Sequence*>{decoding.get(), long_prompt.get()}));
  EXPECT_EQ(step.decode_rows, 1);
  EXPECT_EQ(step.prefill_rows, 15);

  step = scheduler.Plan();
  ASSERT_EQ(step.sequences, (std::vector<Sequence*>{decoding.get(), long_prompt.get(), late.get()}));
  EXPECT_EQ(step.plan.segments[1].num_rows, 10);
  EXPECT_EQ(step.plan.segments[2].num_rows, 5);
  EXPECT_EQ(step.plan.segments[2].token_offset, 10);
}

TEST(Scheduler, AdmitsFirstComeFirstServedWhenMemoryIsShort) {
  BlockPool pool(3);
  Scheduler scheduler({.max_running = 4, .step_tokens = 64, .chunk_tokens = 64}, &pool);
  auto first = MakeSequence(16, 17);   // 2 blocks
  auto second = MakeSequence(16, 17);  // 2 blocks: must wait
  auto third = MakeSequence(1, 1);     // would fit, but came later
  scheduler.Add(first.get());
  scheduler.Add(second.get());
  scheduler.Add(third.get());
  const ScheduledStep step = scheduler.Plan();
  EXPECT_EQ(step.sequences, std::vector<Sequence*>{first.get()});
  EXPECT_EQ(scheduler.num_waiting(), 2);
  EXPECT_EQ(scheduler.waiting_tokens(), 17);

  Collect(step);
  scheduler.Remove(first.get());
  scheduler.Free(first.get());
  const ScheduledStep next = scheduler.Plan();
  EXPECT_EQ(next.sequences, (std::vector<Sequence*>{second.get(), third.get()}));
  EXPECT_EQ(next.plan.releases.size(), 1u);
}

TEST(Scheduler, NeverPlansBeyondMaxTokens) {
  BlockPool pool(4);
  Scheduler scheduler({.max_running = 1, .step_tokens = 8, .chunk_tokens = 8}, &pool);
  auto sequence = MakeSequence(3, 2);
  scheduler.Add(sequence.get());
  EXPECT_FALSE(scheduler.Plan().empty());
  EXPECT_FALSE(scheduler.Plan().empty());
  EXPECT_TRUE(scheduler.Plan().empty());
  EXPECT_EQ(sequence->planned_tokens, 2);
}

TEST(Scheduler, LimitsRunningSequencesToItsSlots) {
  BlockPool pool(16);
  Scheduler scheduler({.max_running = 2, .step_tokens = 8, .chunk_tokens = 8}, &pool);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back(MakeSequence(1, 2));
    scheduler.Add(sequences.back().get());
  }
  EXPECT_EQ(scheduler.Plan().sequences.size(), 2u);
  EXPECT_EQ(scheduler.num_waiting(), 1);
}

}  // namespace
}  // namespace ridge::worker
