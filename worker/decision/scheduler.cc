#include "worker/decision/scheduler.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ridge::worker {

Scheduler::Scheduler(const SchedulerConfig& config, BlockPool* pool) : config_(config), pool_(pool) {
  RIDGE_CHECK(config.max_running >= 1 && config.step_tokens >= config.max_running && config.chunk_tokens >= 1);
  for (SlotId slot = config.max_running - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(Sequence* sequence) {
  RIDGE_CHECK(sequence->state == SequenceState::kWaiting);
  waiting_.push_back(sequence);
  waiting_tokens_ += sequence->prompt_tokens();
}

void Scheduler::Remove(Sequence* sequence) {
  if (sequence->state == SequenceState::kWaiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), sequence));
    waiting_tokens_ -= sequence->prompt_tokens();
  } else {
    RIDGE_CHECK(sequence->state == SequenceState::kRunning);
    running_.erase(std::find(running_.begin(), running_.end(), sequence));
  }
  sequence->state = SequenceState::kFinished;
}

void Scheduler::Free(Sequence* sequence) {
  RIDGE_CHECK(sequence->state == SequenceState::kFinished && sequence->steps_in_flight == 0);
  pool_->Release(sequence->blocks);
  sequence->blocks.clear();
  if (sequence->slot >= 0) {
    // The plan that reuses the slot also carries its release, and releases are applied first.
    released_slots_.push_back(sequence->slot);
    free_slots_.push_back(sequence->slot);
    sequence->slot = -1;
  }
}

ScheduledStep Scheduler::Plan() {
  ScheduledStep step;
  PlanDecodes(&step);
  int32_t budget = config_.step_tokens - step.decode_rows;
  PlanPrefills(&budget, &step);
  PlanAdmissions(&budget, &step);
  if (!step.empty()) step.plan.releases = std::exchange(released_slots_, {});
  return step;
}

void Scheduler::PlanDecodes(ScheduledStep* step) {
  for (Sequence* sequence : running_) {
    if (!sequence->prefill_planned() || sequence->planned_tokens >= sequence->spec.max_tokens) continue;
    step->plan.segments.push_back({.slot = sequence->slot,
                                   .first_position = sequence->planned_rows,
                                   .num_rows = 1,
                                   .first_row_from_slot = true,
                                   .token_offset = 0,
                                   .num_outputs = 1});
    step->sequences.push_back(sequence);
    ++sequence->planned_rows;
    ++sequence->planned_tokens;
    ++sequence->steps_in_flight;
    ++step->decode_rows;
  }
}

void Scheduler::PlanPrefills(int32_t* budget, ScheduledStep* step) {
  for (Sequence* sequence : running_) {
    if (*budget == 0) return;
    if (!sequence->prefill_planned()) PlanChunk(sequence, budget, step);
  }
}

void Scheduler::PlanAdmissions(int32_t* budget, ScheduledStep* step) {
  while (*budget > 0 && !waiting_.empty() && !free_slots_.empty()) {
    Sequence* sequence = waiting_.front();
    const int32_t num_blocks = BlocksAtLimit(sequence->prompt_tokens(), sequence->spec.max_tokens);
    if (num_blocks > pool_->free_blocks()) return;
    waiting_.pop_front();
    waiting_tokens_ -= sequence->prompt_tokens();

    sequence->state = SequenceState::kRunning;
    sequence->slot = free_slots_.back();
    free_slots_.pop_back();
    sequence->blocks = pool_->Allocate(num_blocks);
    step->plan.attaches.push_back({sequence->slot, sequence->spec.sampling});
    for (BlockId block : sequence->blocks) step->plan.appends.push_back({sequence->slot, block});
    running_.push_back(sequence);
    step->admitted.push_back(sequence);
    PlanChunk(sequence, budget, step);
  }
}

void Scheduler::PlanChunk(Sequence* sequence, int32_t* budget, ScheduledStep* step) {
  const int32_t begin = sequence->planned_rows;
  const int32_t rows = std::min({sequence->prompt_tokens() - begin, config_.chunk_tokens, *budget});
  const bool completes = begin + rows == sequence->prompt_tokens();
  StepPlan& plan = step->plan;
  plan.segments.push_back({.slot = sequence->slot,
                           .first_position = begin,
                           .num_rows = rows,
                           .first_row_from_slot = false,
                           .token_offset = static_cast<int32_t>(plan.tokens.size()),
                           .num_outputs = completes ? 1 : 0});
  const auto first = sequence->spec.prompt.begin() + begin;
  plan.tokens.insert(plan.tokens.end(), first, first + rows);
  step->sequences.push_back(sequence);
  sequence->planned_rows += rows;
  sequence->planned_tokens += completes ? 1 : 0;
  ++sequence->steps_in_flight;
  step->prefill_rows += rows;
  *budget -= rows;
}

}  // namespace ridge::worker
