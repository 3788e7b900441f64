#include "worker/decision/scheduler.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SchedulerTest : public ::testing::Test {
 protected:
  void Start(int32_t num_blocks, SchedulerConfig config) {
    pool_ = std::make_unique<BlockPool>(num_blocks);
    cache_ = std::make_unique<PrefixCache>(pool_.get());
    scheduler_ = std::make_unique<Scheduler>(config, pool_.get(), cache_.get());
  }

  // A new sequence that waits. Its prompt is its own, unless `first_token` is another's.
  Sequence* Add(int32_t prompt_tokens, int32_t max_tokens, const std::string& tenant = "",
                int32_t priority = 0, TokenId first_token = -1) {
    sequences_.push_back(std::make_unique<Sequence>());
    Sequence* sequence = sequences_.back().get();
    sequence->id = sequences_.size();
    if (first_token < 0) first_token = static_cast<TokenId>(sequence->id) * 10000;
    for (int32_t i = 0; i < prompt_tokens; ++i) sequence->spec.prompt.push_back(first_token + i);
    sequence->spec.max_tokens = max_tokens;
    sequence->spec.tenant = tenant;
    sequence->spec.priority = priority;
    scheduler_->Add(sequence);
    Check();
    return sequence;
  }

  ScheduledStep Plan() {
    ScheduledStep step = scheduler_->Plan(now_ns_);
    Check();
    return step;
  }

  // As the engine does, with a token for each row that wants one; sequences that reached their limit end.
  void Collect(const ScheduledStep& step) {
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      Sequence* sequence = step.sequences[i];
      scheduler_->OnCollected(sequence, step.plan.segments[i].num_rows);
      if (sequence->state != SequenceState::kFinished && step.plan.segments[i].num_outputs > 0) {
        sequence->generated.push_back(9000 + static_cast<TokenId>(sequence->generated.size()));
        if (static_cast<int32_t>(sequence->generated.size()) == sequence->spec.max_tokens)
          scheduler_->Remove(sequence);
      }
      Settle(sequence);
    }
    Check();
  }

  void Settle(Sequence* sequence) {
    scheduler_->Settle(sequence);
    if (sequence->state == SequenceState::kFinished && sequence->steps_in_flight == 0)
      gone_.push_back(sequence);
  }

  void Remove(Sequence* sequence) {
    scheduler_->Remove(sequence);
    Settle(sequence);
    Check();
  }

  ScheduledStep PlanAndCollect() {
    ScheduledStep step = Plan();
    Collect(step);
    return step;
  }

  void Check() {
    std::vector<const Sequence*> present;
    for (const auto& sequence : sequences_) {
      if (std::find(gone_.begin(), gone_.end(), sequence.get()) == gone_.end())
        present.push_back(sequence.get());
    }
    scheduler_->CheckInvariant(present);
  }

  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<const Sequence*> gone_;  // finished and settled
  int64_t now_ns_ = 0;
};

TEST_F(SchedulerTest, PlansNothingWithoutSequences) {
  Start(4, {.max_running = 2, .step_tokens = 8, .chunk_tokens = 8});
  EXPECT_TRUE(Plan().empty());
}

TEST_F(SchedulerTest, CutsAPromptIntoChunksAndWantsATokenOfTheLastRowOnly) {
  Start(4, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 8});
  Add(20, 4, "", 0, /*first_token=*/0);

  std::vector<std::pair<int32_t, int32_t>> chunks;
  for (int i = 0; i < 3; ++i) {
    const ScheduledStep step = Plan();
    ASSERT_EQ(step.plan.segments.size(), 1u);
    const Segment& segment = step.plan.segments[0];
    chunks.emplace_back(segment.first_position, segment.num_rows);
    EXPECT_EQ(segment.num_outputs, i == 2 ? 1 : 0);
    EXPECT_EQ(step.plan.tokens.front(), segment.first_position);
    EXPECT_FALSE(segment.first_row_from_slot);
  }
  EXPECT_EQ(chunks, (std::vector<std::pair<int32_t, int32_t>>{{0, 8}, {8, 8}, {16, 4}}));

  const ScheduledStep decode = Plan();
  ASSERT_EQ(decode.plan.segments.size(), 1u);
  EXPECT_TRUE(decode.plan.segments[0].first_row_from_slot);
  EXPECT_EQ(decode.plan.segments[0].first_position, 20);
  EXPECT_EQ(decode.decode_rows, 1);
}

TEST_F(SchedulerTest, TakesTheBlocksOfThePromptAndThenOneWhenDecodingReachesIt) {
  Start(8, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64});
  Sequence* sequence = Add(30, 10);
  ScheduledStep step = Plan();
  EXPECT_EQ(step.plan.attaches.size(), 1u);
  EXPECT_EQ(step.plan.appends.size(), 2u);
  EXPECT_THAT(step.admitted, ElementsAre(sequence));
  EXPECT_EQ(pool_->available_blocks(), 6);
  EXPECT_THAT(Plan().plan.appends, IsEmpty());  // position 30
  EXPECT_THAT(Plan().plan.appends, IsEmpty());  // position 31
  EXPECT_EQ(Plan().plan.appends.size(), 1u);    // position 32
  EXPECT_EQ(pool_->available_blocks(), 5);
}

TEST_F(SchedulerTest, PutsDecodesFirstThenRunningPrefillsThenAdmissionsUnderTheBudget) {
  Start(64, {.max_running = 4, .step_tokens = 16, .chunk_tokens = 16});
  Sequence* decoding = Add(2, 10);
  Plan();
  Sequence* long_prompt = Add(40, 10);
  Plan();
  Sequence* late = Add(5, 10);

  ScheduledStep step = Plan();
  EXPECT_THAT(step.sequences, ElementsAre(decoding, long_prompt));
  EXPECT_EQ(step.decode_rows, 1);
  EXPECT_EQ(step.prefill_rows, 15);

  step = Plan();
  ASSERT_THAT(step.sequences, ElementsAre(decoding, long_prompt, late));
  EXPECT_EQ(step.plan.segments[1].num_rows, 10);
  EXPECT_EQ(step.plan.segments[2].num_rows, 5);
  EXPECT_EQ(step.plan.segments[2].token_offset, 10);
}

TEST_F(SchedulerTest, AdmitsFirstComeFirstServedWhenMemoryIsShort) {
  Start(3, {.max_running = 4, .step_tokens = 64, .chunk_tokens = 64});
  Sequence* first = Add(32, 2);
  Sequence* second = Add(32, 2);  // must wait
  Sequence* third = Add(1, 1);    // would fit, but came later
  const ScheduledStep step = Plan();
  EXPECT_THAT(step.sequences, ElementsAre(first));
  EXPECT_EQ(scheduler_->num_waiting(), 2);
  EXPECT_EQ(scheduler_->waiting_tokens(), 33);

  Collect(step);
  Remove(first);
  const ScheduledStep next = Plan();
  EXPECT_THAT(next.sequences, ElementsAre(second, third));
  EXPECT_EQ(next.plan.releases.size(), 1u);
}

TEST_F(SchedulerTest, NeverPlansBeyondMaxTokens) {
  Start(4, {.max_running = 1, .step_tokens = 8, .chunk_tokens = 8});
  const Sequence* sequence = Add(3, 2);
  EXPECT_FALSE(Plan().empty());
  EXPECT_FALSE(Plan().empty());
  EXPECT_TRUE(Plan().empty());
  EXPECT_EQ(sequence->planned_tokens, 2);
}

TEST_F(SchedulerTest, LimitsRunningSequencesToItsSlots) {
  Start(16, {.max_running = 2, .step_tokens = 8, .chunk_tokens = 8});
  for (int i = 0; i < 3; ++i) Add(1, 2);
  EXPECT_EQ(Plan().sequences.size(), 2u);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
}

TEST_F(SchedulerTest, PreemptsTheYoungestWhenMemoryRunsOutAndComputesItAgain) {
  Start(4, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64, .policy = {.prefix_cache = false}});
  Sequence* older = Add(30, 30);
  Sequence* younger = Add(30, 30);
  PlanAndCollect();  // both hold two blocks
  PlanAndCollect();
  PlanAndCollect();  // position 31: all blocks are full

  const ScheduledStep step = PlanAndCollect();
  EXPECT_THAT(step.sequences, ElementsAre(older));
  EXPECT_EQ(younger->state, SequenceState::kWaiting);
  EXPECT_EQ(younger->generated.size(), 3u);
  EXPECT_EQ(pool_->available_blocks(), 1);
  EXPECT_EQ(scheduler_->preemptions(), 1);

  while (older->state != SequenceState::kFinished) PlanAndCollect();
  const ScheduledStep again = PlanAndCollect();
  ASSERT_THAT(again.admitted, ElementsAre(younger));
  EXPECT_EQ(again.prefill_rows, 33);  // the prompt and the three tokens that it had
  EXPECT_EQ(again.plan.tokens.back(), younger->generated[2]);
  EXPECT_EQ(younger->generated.size(), 4u);
}

TEST_F(SchedulerTest, APreemptedSequenceKeepsTheTokenThatWasUnderWay) {
  Start(2, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64, .policy = {.prefix_cache = false}});
  Sequence* older = Add(14, 18);
  Sequence* younger = Add(14, 18);
  const ScheduledStep first = Plan();
  const ScheduledStep second = Plan();
  const ScheduledStep third = Plan();  // position 15 of both
  Collect(first);

  const ScheduledStep stalled = Plan();
  EXPECT_TRUE(stalled.empty());  // the younger one's block comes back with the steps in flight
  EXPECT_EQ(younger->state, SequenceState::kPreempted);
  EXPECT_TRUE(Plan().empty());
  EXPECT_EQ(scheduler_->preemptions(), 1);
  Collect(second);
  Collect(third);
  EXPECT_EQ(younger->state, SequenceState::kWaiting);
  EXPECT_EQ(younger->generated.size(), 3u);
  EXPECT_THAT(Plan().sequences, ElementsAre(older));
}

TEST_F(SchedulerTest, PreemptsLowerPriorityBeforeYounger) {
  Start(4, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64, .policy = {.prefix_cache = false}});
  Sequence* low = Add(30, 30, "", -1);
  Sequence* normal = Add(30, 30, "", 0);
  for (int i = 0; i < 4; ++i) PlanAndCollect();
  EXPECT_EQ(low->preemptions, 1);
  EXPECT_EQ(normal->preemptions, 0);
}

TEST_F(SchedulerTest, PreemptsNoSequenceMoreThanThreeTimes) {
  Start(12, {.max_running = 12, .step_tokens = 256, .chunk_tokens = 256, .policy = {.prefix_cache = false}});
  for (int i = 0; i < 12; ++i) Add(15, 60);
  for (int i = 0; gone_.size() < 12; ++i) {
    ASSERT_LT(i, 2000);
    PlanAndCollect();
  }
  for (const auto& sequence : sequences_) {
    EXPECT_LE(sequence->preemptions, kMaxPreemptions);
    EXPECT_EQ(sequence->generated.size(), 60u);
  }
  EXPECT_GT(scheduler_->preemptions(), 0);
}

TEST_F(SchedulerTest, LeavesTheWatermarkToRunningSequences) {
  Start(200, {.max_running = 4, .step_tokens = 8192, .chunk_tokens = 8192});
  Add(16 * 100, 4);
  Sequence* would_fill_it = Add(16 * 99, 4);
  EXPECT_EQ(Plan().sequences.size(), 1u);
  EXPECT_EQ(would_fill_it->state, SequenceState::kWaiting);
  Add(16, 4);
  EXPECT_EQ(scheduler_->num_waiting(), 2);
}

TEST_F(SchedulerTest, SkipsWhatThePrefixCacheHoldsButTheLastToken) {
  Start(16, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64});
  Sequence* first = Add(32, 3, "", 0, /*first_token=*/100);
  PlanAndCollect();
  Sequence* same = Add(32, 3, "", 0, /*first_token=*/100);
  const ScheduledStep step = Plan();
  ASSERT_THAT(step.sequences, ElementsAre(first, same));
  EXPECT_EQ(step.plan.segments[1].first_position, 16);  // not 32: the last row gives the first token
  EXPECT_EQ(step.prefill_rows, 16);
  EXPECT_EQ(same->cached_tokens, 16);
  EXPECT_EQ(same->blocks[0], first->blocks[0]);
  EXPECT_NE(same->blocks[1], first->blocks[1]);
  EXPECT_EQ(scheduler_->prefix_counters().hits, 16);
  EXPECT_EQ(scheduler_->prefix_counters().queries, 62);
}

TEST_F(SchedulerTest, FindsNothingBeforeItsStepWasCollected) {
  Start(16, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64});
  Add(32, 3, "", 0, 100);
  Plan();
  const Sequence* same = Add(32, 3, "", 0, 100);
  Plan();
  EXPECT_EQ(same->cached_tokens, 0);
}

TEST_F(SchedulerTest, ANextTurnFindsWhatDecodingWrote) {
  Start(16, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64});
  Sequence* first = Add(10, 23);
  while (first->state != SequenceState::kFinished) PlanAndCollect();
  std::vector<TokenId> conversation = first->spec.prompt;
  conversation.insert(conversation.end(), first->generated.begin(), first->generated.end());
  conversation.push_back(77);

  Sequence* next = Add(1, 3);
  Remove(next);
  sequences_.push_back(std::make_unique<Sequence>());
  next = sequences_.back().get();
  next->id = sequences_.size();
  next->spec.prompt = conversation;  // 34 tokens; the first 32 were put through the model
  next->spec.max_tokens = 1;
  scheduler_->Add(next);
  Plan();
  EXPECT_EQ(next->cached_tokens, 32);
}

TEST_F(SchedulerTest, ATenantsFloodDoesNotDelayAnothersNextStep) {
  Start(4096, {.max_running = 8, .step_tokens = 64, .chunk_tokens = 64});
  for (int i = 0; i < 100; ++i) Add(1000, 4, "flood");
  for (int i = 0; i < 5; ++i) PlanAndCollect();
  Sequence* other = Add(60, 4, "other");
  // As much served as the flood until now; none of it runs.
  const ScheduledStep step = PlanAndCollect();
  EXPECT_EQ(step.sequences[0], other);
  EXPECT_EQ(other->generated.size(), 1u);
}

TEST_F(SchedulerTest, ATenantThatHoldsAllSlotsGivesOneUp) {
  Start(4096, {.max_running = 4, .step_tokens = 64, .chunk_tokens = 64});
  for (int i = 0; i < 8; ++i) Add(8, 1000, "flood");
  for (int i = 0; i < 3; ++i) PlanAndCollect();
  ASSERT_EQ(scheduler_->num_running(), 4);
  const Sequence* other = Add(8, 4, "other");
  EXPECT_EQ(PlanAndCollect().decode_rows, 3);
  EXPECT_EQ(other->generated.size(), 1u);
  EXPECT_EQ(scheduler_->num_running(), 4);
  EXPECT_EQ(scheduler_->preemptions(), 1);
}

TEST_F(SchedulerTest, WhoTakesASlotIsInTheStepAfterTheOneInFlight) {
  Start(4096, {.max_running = 4, .step_tokens = 64, .chunk_tokens = 64});
  for (int i = 0; i < 8; ++i) Add(8, 1000, "flood");
  for (int i = 0; i < 3; ++i) PlanAndCollect();
  const ScheduledStep in_flight = Plan();
  const Sequence* other = Add(8, 4, "other");
  EXPECT_TRUE(Plan().empty());
  EXPECT_TRUE(Plan().empty());
  EXPECT_EQ(scheduler_->preemptions(), 1);
  Collect(in_flight);
  const ScheduledStep step = PlanAndCollect();
  EXPECT_EQ(step.decode_rows, 3);
  EXPECT_THAT(step.admitted, ElementsAre(other));
}

TEST_F(SchedulerTest, ATenantThatHoldsAllSlotsGivesOneUpToOneThatWasServedMoreRows) {
  Start(4096, {.max_running = 4, .step_tokens = 64, .chunk_tokens = 64});
  for (int i = 0; i < 8; ++i) Add(8, 1000, "flood");
  for (int i = 0; i < 3; ++i) PlanAndCollect();
  for (int i = 0; i < 5; ++i) {
    const Sequence* other = Add(150, 1, "other");
    for (int steps = 0; other->state != SequenceState::kFinished; ++steps) {
      ASSERT_LT(steps, 6);  // the flood's own rows, four a step, would take forty to be as many
      PlanAndCollect();
    }
  }
}

TEST_F(SchedulerTest, WhatIsAboutToBeFreeGoesToTheTenantThatRunsFewer) {
  Start(4096, {.max_running = 4, .step_tokens = 64, .chunk_tokens = 64});
  for (int i = 0; i < 3; ++i) Add(8, 1000, "flood");
  Sequence* ending = Add(8, 1000, "flood");
  for (int i = 0; i < 4; ++i) Add(8, 1000, "flood");
  for (int i = 0; i < 3; ++i) PlanAndCollect();
  const ScheduledStep in_flight = Plan();
  Remove(ending);
  const Sequence* other = Add(8, 4, "other");
  other->tenant->rows = 100'000;
  EXPECT_TRUE(Plan().empty());
  Collect(in_flight);
  EXPECT_THAT(Plan().admitted, ElementsAre(other));
  EXPECT_EQ(scheduler_->preemptions(), 0);
}

TEST_F(SchedulerTest, NobodyOfALowerPriorityPassesWhoWaitsForASlot) {
  Start(4096, {.max_running = 2, .step_tokens = 64, .chunk_tokens = 64});
  for (int i = 0; i < 2; ++i) Add(8, 1000, "flood");
  PlanAndCollect();
  Add(8, 1000, "flood", 1);
  const Sequence* other = Add(8, 4, "other");
  for (int i = 0; i < 5; ++i) PlanAndCollect();
  EXPECT_EQ(other->state, SequenceState::kWaiting);
  EXPECT_EQ(scheduler_->preemptions(), 0);
}

TEST_F(SchedulerTest, WhoWaitsForMemoryIsPassedByATenantThatRunsFewer) {
  Start(64, {.max_running = 8, .step_tokens = 2048, .chunk_tokens = 2048, .policy = {.prefix_cache = false}});
  for (int i = 0; i < 2; ++i) Add(16 * 20, 1000, "flood");
  PlanAndCollect();
  const Sequence* large = Add(16 * 40, 1000, "flood");
  const Sequence* other = Add(64, 1, "other");
  other->tenant->rows = 100'000;
  EXPECT_THAT(PlanAndCollect().admitted, ElementsAre(other));
  EXPECT_EQ(large->state, SequenceState::kWaiting);
}

TEST_F(SchedulerTest, ATenantThatWantedLittleForLongHasSavedUpTwoStepsAndNoMore) {
  Start(4096, {.max_running = 8, .step_tokens = 64, .chunk_tokens = 64});
  Add(8, 1000, "little");
  for (int i = 0; i < 4; ++i) Add(4000, 4, "much");
  for (int i = 0; i < 100; ++i) PlanAndCollect();
  for (int i = 0; i < 4; ++i) Add(4000, 4, "little");
  int32_t rows = 0;
  for (int i = 0; i < 10; ++i) {
    const ScheduledStep step = PlanAndCollect();
    for (size_t s = 0; s < step.sequences.size(); ++s) {
      if (step.sequences[s]->spec.tenant == "much") rows += step.plan.segments[s].num_rows;
    }
  }
  EXPECT_GE(rows, 4 * 63);  // of 10 * 64: half of what comes after the two
}

TEST_F(SchedulerTest, ALongLineDoesNotComeBeforeAnotherTenantForItsAge) {
  Start(8, {.max_running = 1, .step_tokens = 16, .chunk_tokens = 16});
  for (int i = 0; i < 3; ++i) Add(16, 1, "flood");
  now_ns_ = 3 * WaitingQueue::kAgeingNs;
  PlanAndCollect();  // the first of them is served; the second has waited as long
  Sequence* other = Add(16, 1, "other");
  other->spec.arrival_ns = now_ns_;
  const ScheduledStep step = PlanAndCollect();
  EXPECT_THAT(step.sequences, ElementsAre(other));
}

TEST_F(SchedulerTest, AFloodDoesNotFillUpTheStepOfAnothersShortPrompt) {
  Start(4096, {.max_running = 8, .step_tokens = 256, .chunk_tokens = 256});
  for (int i = 0; i < 8; ++i) Add(4000, 4, "flood");
  const auto rows_of = [](const ScheduledStep& step, const char* tenant) {
    int32_t rows = 0;
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      if (step.sequences[i]->spec.tenant == tenant) rows += step.plan.segments[i].num_rows;
    }
    return rows;
  };
  ScheduledStep step = PlanAndCollect();
  EXPECT_EQ(rows_of(step, "flood"), 256);
  Add(100, 1, "other");
  step = PlanAndCollect();
  EXPECT_EQ(rows_of(step, "other"), 100);
  EXPECT_EQ(rows_of(step, "flood"), 100);
  PlanAndCollect();
  Add(5, 1, "other");
  step = PlanAndCollect();
  EXPECT_EQ(rows_of(step, "other"), 5);
  EXPECT_EQ(rows_of(step, "flood"), 256 / 8);
  // Not in two steps in a row.
  Add(5, 1, "other");
  step = PlanAndCollect();
  EXPECT_EQ(rows_of(step, "other"), 5);
  EXPECT_EQ(rows_of(step, "flood"), 251);
}

TEST_F(SchedulerTest, PromptsThatFitIntoOneStepShareItWhateverTheirTenants) {
  Start(4096, {.max_running = 8, .step_tokens = 256, .chunk_tokens = 256});
  Add(10, 1, "a");
  Add(100, 1, "b");
  Add(140, 1, "c");
  EXPECT_EQ(PlanAndCollect().prefill_rows, 250);
}

TEST_F(SchedulerTest, ANewcomersPromptOfLittleMoreThanAStepIsNotInterrupted) {
  Start(4096, {.max_running = 8, .step_tokens = 256, .chunk_tokens = 256});
  Add(8, 100, "flood");
  for (int i = 0; i < 8; ++i) Add(4000, 4, "flood");
  for (int i = 0; i < 3; ++i) PlanAndCollect();
  const Sequence* other = Add(300, 1, "other");
  PlanAndCollect();
  PlanAndCollect();
  EXPECT_EQ(other->generated.size(), 1u);
}

TEST_F(SchedulerTest, ARunningPrefillAgesToo) {
  Start(4096, {.max_running = 8, .step_tokens = 64, .chunk_tokens = 64});
  Sequence* low = Add(200, 1);
  PlanAndCollect();
  // As many rows of a higher priority as there is room for, in steps of a second.
  int steps = 0;
  for (; steps < 100 && low->state != SequenceState::kFinished; ++steps) {
    now_ns_ += WaitingQueue::kAgeingNs / 10;
    Add(64, 1, "", 1)->spec.arrival_ns = now_ns_;
    PlanAndCollect();
  }
  EXPECT_LE(steps, 30);  // three chunks more
  EXPECT_GT(steps, 20);
}

TEST_F(SchedulerTest, ATenantsFloodThatHasWaitedForLongDoesNotHoldUpAnothersRequest) {
  Start(4096, {.max_running = 4, .step_tokens = 64, .chunk_tokens = 64});
  for (int i = 0; i < 8; ++i) Add(8, 1000, "flood");
  for (int i = 0; i < 3; ++i) PlanAndCollect();
  now_ns_ = 5 * WaitingQueue::kAgeingNs;
  const Sequence* other = Add(8, 4, "other");
  other->tenant->rows = 100'000;
  PlanAndCollect();
  EXPECT_EQ(other->generated.size(), 1u);
}

TEST_F(SchedulerTest, ABatchIsNoWiderThanTheContext) {
  Start(64, {.max_running = 2,
             .step_tokens = 64,
             .chunk_tokens = 64,
             .policy = PresetPolicy("batched"),
             .slot_tokens = 64});
  Sequence* long_prompt = Add(60, 4);
  Sequence* long_output = Add(4, 60);
  int32_t widest = 0;
  while (long_output->state != SequenceState::kFinished) {
    const ScheduledStep step = PlanAndCollect();
    if (!step.admitted.empty()) {
      EXPECT_EQ(long_prompt->blocks.size(), 4u);
      EXPECT_EQ(long_output->blocks.size(), 4u);
    }
    widest = std::max(widest, step.plan.padded_width);
  }
  EXPECT_EQ(widest, 64);
}

TEST_F(SchedulerTest, APriorityGoesFirstAndAgeingCatchesUp) {
  Start(64, {.max_running = 1, .step_tokens = 64, .chunk_tokens = 64});
  Sequence* running = Add(8, 2);
  PlanAndCollect();
  Sequence* normal = Add(8, 1, "", 0);
  now_ns_ = WaitingQueue::kAgeingNs - 1;
  Sequence* high = Add(8, 1, "", 1);
  high->spec.arrival_ns = now_ns_;
  PlanAndCollect();
  ASSERT_EQ(running->state, SequenceState::kFinished);
  EXPECT_THAT(PlanAndCollect().sequences, ElementsAre(high));

  now_ns_ += 1;
  Sequence* late_high = Add(8, 1, "", 1);
  late_high->spec.arrival_ns = now_ns_;
  EXPECT_THAT(PlanAndCollect().sequences, ElementsAre(normal));  // as high by now, and older
  EXPECT_THAT(PlanAndCollect().sequences, ElementsAre(late_high));
}

}  // namespace
}  // namespace ridge::worker
