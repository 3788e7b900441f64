#include "worker/decision/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "worker/decision/sampling_plan.h"

namespace ridge::worker {
namespace {

// One block in this many stays free of admissions while anything runs.
constexpr int32_t kWatermarkShare = 100;

bool GoesBefore(const Sequence& waiting, const Sequence& prefill, int64_t now_ns) {
  const auto rank = [](int64_t of_class, const Tenant& tenant) {
    return std::tuple(-of_class, tenant.served_rows(), tenant.running);
  };
  return rank(waiting.spec.priority, *waiting.tenant) <
         rank(RunningSet::PrefillClass(prefill, now_ns), *prefill.tenant);
}

bool WantsDecode(const Sequence& sequence) {
  return sequence.prefill_planned() && !sequence.all_planned() && !sequence.waits_for_tokens();
}

bool NeedsBlock(const Sequence& sequence) {
  return sequence.planned_rows == static_cast<int32_t>(sequence.blocks.size()) * kBlockTokens;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, BlockPool* pool, PrefixCache* cache)
    : config_(config),
      pool_(pool),
      memory_(config.policy.memory, config.policy.prefix_cache, config.slot_tokens, pool, cache),
      watermark_(Preempts() ? pool->num_blocks() / kWatermarkShare : 0),
      slots_(config.policy.admission == AdmissionPolicy::kOne ? 1 : config.max_running),
      tenants_(config.step_tokens),
      flood_limit_(config.step_tokens) {
  RIDGE_CHECK(config.max_running >= 1 && config.step_tokens >= config.max_running &&
              config.chunk_tokens >= 1);
  RIDGE_CHECK(config.policy.memory != MemoryPolicy::kSlots || config.slot_tokens >= 1);
}

void Scheduler::Add(Sequence* sequence) {
  RIDGE_CHECK(sequence->state == SequenceState::kWaiting);
  sequence->tenant = tenants_.Enter(sequence->spec.tenant);
  if (memory_.Lends() && forks_.Hold(sequence)) return;
  waiting_.Add(sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  const bool was_held = forks_.Remove(sequence);
  switch (sequence->state) {
    case SequenceState::kWaiting:
      if (!was_held) waiting_.Remove(sequence);
      break;
    case SequenceState::kRunning:
      running_.Remove(sequence);
      if (sequence->group != nullptr) waiting_.Recount(*sequence->group);
      ++unsettled_;
      break;
    case SequenceState::kPreempted:
      break;  // it is counted as unsettled already
    case SequenceState::kFinished:
      RIDGE_CHECK(false);
  }
  sequence->state = SequenceState::kFinished;
  if (sequence == only_) only_ = nullptr;
  if (sequence == claimant_) claimant_ = nullptr;
  tenants_.Leave(std::exchange(sequence->tenant, nullptr));
}

void Scheduler::OnCollected(Sequence* sequence, int32_t rows) {
  sequence->collected_rows += rows;
  --sequence->steps_in_flight;
  // A finished sequence may hold the row of a token that it never had.
  if (sequence->state != SequenceState::kFinished) memory_.Publish(sequence);
}

void Scheduler::PrefetchCollected(const ScheduledStep& step) const {
  for (size_t i = 0; i < step.sequences.size(); ++i)
    memory_.PrefetchPublish(*step.sequences[i], step.plan.segments[i].num_rows);
}

void Scheduler::Settle(Sequence* sequence) {
  if (sequence->steps_in_flight > 0) return;
  if (sequence->state == SequenceState::kFinished) {
    if (sequence->slot < 0) return;  // it never ran, or was settled
    --unsettled_;
    if (config_.policy.admission == AdmissionPolicy::kBatch) {
      slots_.Hold({std::exchange(sequence->slot, -1), std::exchange(sequence->blocks, {})});
    } else {
      GiveBack(sequence);
    }
  } else if (sequence->state == SequenceState::kPreempted) {
    --unsettled_;
    WaitAgain(sequence);
  } else if (sequence->state == SequenceState::kRunning && sequence->prefill_planned() &&
             config_.policy.memory == MemoryPolicy::kScratch) {
    running_.Remove(sequence);
    WaitAgain(sequence);
  }
}

void Scheduler::WaitAgain(Sequence* sequence) {
  GiveBack(sequence);
  sequence->state = SequenceState::kWaiting;
  waiting_.Add(sequence);
}

ScheduledStep Scheduler::Plan(int64_t now_ns) {
  now_ns_ = now_ns;
  // A slot that changes hands is free when the step in flight was collected. Its successor waits for that:
  // planned now, it would have no row of the one that comes.
  if (ReclaimSlot(now_ns)) return {};
  for (;;) {
    const int64_t preemptions = preemptions_;
    ScheduledStep step = TryPlan(now_ns);
    // Where nobody can go on, those who gave way have left room for others.
    if (!step.empty() || preemptions_ == preemptions) return step;
  }
}

ScheduledStep Scheduler::TryPlan(int64_t now_ns) {
  ScheduledStep step;
  for (Sequence* sequence : forks_.Begin()) waiting_.Add(sequence);
  if (running_.empty() && unsettled_ == 0) ReleaseBatch();
  if (config_.policy.step == StepPolicy::kFused) {
    PlanDecodes(&step);
    PlanPrompts(now_ns, &step);
  } else {
    const bool takes_turns = config_.policy.prefill == PrefillPolicy::kChunked;
    const bool decodes_first = takes_turns && last_was_prefill_;
    if (decodes_first) PlanDecodes(&step);
    if (step.empty()) PlanPrompts(now_ns, &step);
    if (step.empty() && !decodes_first) PlanDecodes(&step);
    if (!step.empty()) last_was_prefill_ = step.prefill_rows > 0;
  }
  if (step.empty()) {
    // Nothing may be lost with a plan that is not submitted.
    RIDGE_CHECK(step.plan.attaches.empty() && step.plan.appends.empty());
  } else {
    step.plan.releases = slots_.TakeReleases();
  }
  return step;
}

void Scheduler::ReleaseBatch() {
  for (const Slots::Held& held : slots_.TakeHeld()) {
    pool_->Release(held.blocks);
    slots_.GiveBack(held.slot);
  }
}

bool Scheduler::ReclaimSlot(int64_t now_ns) {
  const bool admits = config_.policy.admission != AdmissionPolicy::kBatch;
  if (!admits || !Preempts() || slots_.any_free() || waiting_.size() == 0) return false;
  const Sequence* prefill = running_.NextPrefill(now_ns, {});
  for (Sequence* next = NextWaiting(now_ns); next != nullptr; next = NextWaiting(now_ns, next)) {
    if (prefill != nullptr && !GoesBefore(*next, *prefill, now_ns)) continue;
    Sequence* victim = running_.VictimOfGreaterShare(*next, {});
    if (victim == nullptr) continue;
    claimant_ = next;
    if (!SomeWillFree()) Preempt(victim);
    return !slots_.any_free();
  }
  return false;
}

void Scheduler::PlanDecodes(ScheduledStep* step) {
  // There, every row is computed with those before it.
  if (config_.policy.memory == MemoryPolicy::kScratch) return;
  ReserveDecodes(step);
  AddDecodes(step);
  if (step->decode_rows == 0) return;
  // What finished in a batch goes on as padding until the last of it has.
  step->plan.padded_rows += static_cast<int32_t>(slots_.held().size());
  if (config_.policy.memory == MemoryPolicy::kPadded) {
    step->plan.padded_width = padding_.NextWidth();
  } else if (config_.policy.memory == MemoryPolicy::kSlots) {
    for (const Segment& segment : step->plan.segments)
      step->plan.padded_width = std::max(step->plan.padded_width, segment.first_position + 1);
  }
  if (step->plan.padded_width == 0) return;
  for (const Slots::Held& held : slots_.held()) step->plan.padded_slots.push_back(held.slot);
}

void Scheduler::ReserveDecodes(ScheduledStep* step) {
  // The youngest may leave while this goes on: never one before the one at hand.
  for (int32_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_.at(i);
    if (!WantsDecode(*sequence) || !NeedsBlock(*sequence)) continue;
    if (!ReserveDecode(sequence, step) && sequence->state != SequenceState::kRunning) --i;
  }
}

bool Scheduler::ReserveDecode(Sequence* sequence, ScheduledStep* step) {
  while (pool_->available_blocks() == 0) {
    if (SomeWillFree()) return false;
    RIDGE_CHECK(Preempts());
    Sequence* victim = running_.Victim(*sequence);
    Preempt(victim != nullptr ? victim : sequence);
    if (victim == nullptr) return false;
  }
  step->plan.appends.push_back({sequence->slot, memory_.Extend(sequence)});
  return true;
}

void Scheduler::AddDecodes(ScheduledStep* step) {
  for (Sequence* sequence : running_) {
    if (!WantsDecode(*sequence) || NeedsBlock(*sequence)) continue;
    AddSegment({.slot = sequence->slot,
                .first_position = sequence->planned_rows,
                .num_rows = 1,
                .first_row_from_slot = true,
                .token_offset = 0,
                .num_outputs = 1},
               sequence, step);
    ++step->decode_rows;
  }
}

void Scheduler::PlanPrompts(int64_t now_ns, ScheduledStep* step) {
  int32_t budget = config_.step_tokens - step->decode_rows - step->plan.padded_rows;
  if (config_.policy.admission == AdmissionPolicy::kBatch) {
    AdmitBatch(now_ns, step);
  } else if (config_.policy.prefill != PrefillPolicy::kChunked) {
    for (Sequence* next; budget > 0 && (next = NextWaiting(now_ns)) != nullptr && Admit(next, step);) {
    }
  } else {
    PlanChunks(now_ns, budget, step);
    return;
  }
  if (config_.policy.prefill == PrefillPolicy::kPadded) padding_.AddPrompts(step->admitted);
  for (Sequence* sequence : running_) {
    if (budget > 0 && !sequence->prefill_planned()) budget -= PlanChunk(sequence, budget, step);
  }
  const int32_t padded = padding_.TakeRows(budget);
  step->plan.padded_rows += padded;
  step->prefill_rows += padded;
}

void Scheduler::AdmitBatch(int64_t now_ns, ScheduledStep* step) {
  if (!running_.empty() || unsettled_ > 0) return;
  std::vector<Sequence*> batch;
  int32_t known = 0;
  int32_t output = 0;
  int32_t width = 0;
  while (static_cast<int32_t>(batch.size()) < slots_.count()) {
    Sequence* next = waiting_.Next(now_ns);
    if (next == nullptr) break;
    const int32_t longest = std::max(known, next->known_tokens());
    const int32_t most =
        std::max(output, next->spec.max_tokens - static_cast<int32_t>(next->generated.size()));
    // One's long prompt and another's long output may be more than any sequence has positions.
    const auto tokens = static_cast<int32_t>(
        std::min(int64_t{longest} + most - 1,
                 config_.slot_tokens > 0 ? int64_t{config_.slot_tokens} : int64_t{INT32_MAX}));
    const int64_t blocks = int64_t{BlocksForTokens(tokens)} * static_cast<int64_t>(batch.size() + 1);
    if (config_.policy.memory == MemoryPolicy::kPadded && !batch.empty() &&
        blocks > pool_->available_blocks())
      break;
    known = longest;
    output = most;
    width = tokens;
    waiting_.Remove(next);
    batch.push_back(next);
  }
  padding_.BeginBatch(known, width);
  for (Sequence* sequence : batch) waiting_.Add(sequence);
  for (Sequence* sequence : batch) {
    if (!Admit(sequence, step)) break;
  }
}

void Scheduler::PlanChunks(int64_t now_ns, int32_t budget, ScheduledStep* step) {
  flood_limit_.BeginStep();
  const Sequence* refused = nullptr;
  while (budget > 0) {
    Sequence* running = running_.NextPrefill(now_ns, step->sequences);
    Sequence* waiting = NextWaiting(now_ns, refused);
    // A running prefill holds memory already: only a tenant that was served less, or a higher class, goes
    // before it.
    const bool from_waiting =
        waiting != nullptr && (running == nullptr || GoesBefore(*waiting, *running, now_ns));
    Sequence* next = from_waiting ? waiting : running;
    if (next == nullptr) return;
    const int32_t most = Floods(*next->tenant) ? std::min(budget, flood_limit_.RowsLeft()) : budget;
    if (most == 0) return flood_limit_.EndShort();
    if (from_waiting && !Admit(next, step)) {
      refused = next;
      continue;
    }
    const bool floods = Floods(*next->tenant);  // what the prefix cache had is not computed
    const int32_t rows = PlanChunk(next, most, step);
    flood_limit_.Add(rows, floods);
    budget -= rows;
  }
}

bool Scheduler::Floods(const Tenant& tenant) const {
  // Of one tenant alone nothing is asked.
  return tenants_.active() > 1 &&
         tenant.waiting_tokens + running_.PrefillLeft(tenant) > int64_t{config_.step_tokens};
}

Sequence* Scheduler::NextWaiting(int64_t now_ns, const Sequence* refused) const {
  if (only_ != nullptr)
    return only_->state == SequenceState::kWaiting && refused == nullptr ? only_ : nullptr;
  if (refused != nullptr) return waiting_.NextOfSmallerShare(now_ns, *refused);
  return claimant_ != nullptr ? claimant_ : waiting_.Next(now_ns);
}

bool Scheduler::Admit(Sequence* sequence, ScheduledStep* step) {
  while (!slots_.any_free() || !TakeBlocks(sequence, step)) {
    Sequence* victim =
        !Preempts() || SomeWillFree() ? nullptr : running_.VictimOfGreaterShare(*sequence, step->admitted);
    if (victim == nullptr) return false;
    claimant_ = sequence;
    Preempt(victim);
  }
  if (sequence == claimant_) claimant_ = nullptr;
  waiting_.Admit(sequence, now_ns_);
  forks_.OnAdmitted(sequence);
  sequence->state = SequenceState::kRunning;
  sequence->slot = slots_.Take();
  sequence->prefilled_ns = now_ns_;
  step->plan.attaches.push_back(AttachOf(*sequence));
  for (BlockId block : sequence->blocks) step->plan.appends.push_back({sequence->slot, block});
  running_.Add(sequence);
  step->admitted.push_back(sequence);
  if (config_.policy.admission == AdmissionPolicy::kOne) only_ = sequence;
  return true;
}

bool Scheduler::TakeBlocks(Sequence* sequence, ScheduledStep* step) {
  return memory_.Take(sequence, IsProtected(*sequence), running_.empty() ? 0 : watermark_,
                      padding_.batch_tokens(), forks_.Lender(*sequence), &step->plan.copies);
}

int32_t Scheduler::PlanChunk(Sequence* sequence, int32_t most, ScheduledStep* step) {
  const int32_t begin = sequence->planned_rows;
  const bool whole = config_.policy.prefill != PrefillPolicy::kChunked;
  const int32_t rows =
      std::min({sequence->prefill_tokens - begin, whole ? INT32_MAX : config_.chunk_tokens, most});
  const bool completes = begin + rows == sequence->prefill_tokens;
  const auto token_offset = static_cast<int32_t>(step->plan.tokens.size());
  for (int32_t i = 0; i < rows; ++i) step->plan.tokens.push_back(sequence->token(begin + i));
  AddSegment({.slot = sequence->slot,
              .first_position = begin,
              .num_rows = rows,
              .first_row_from_slot = false,
              .token_offset = token_offset,
              .num_outputs = completes ? 1 : 0},
             sequence, step);
  sequence->prefilled_ns = now_ns_;
  step->prefill_rows += rows;
  return rows;
}

void Scheduler::AddSegment(Segment segment, Sequence* sequence, ScheduledStep* step) {
  AddSampling(*sequence, &segment, &step->plan);
  step->plan.segments.push_back(segment);
  step->sequences.push_back(sequence);
  sequence->planned_rows += segment.num_rows;
  if (memory_.Lends() && sequence->planned_rows >= sequence->prompt_tokens() &&
      forks_.OnPromptPlanned(sequence))
    waiting_.Recount(*sequence->group);
  sequence->planned_tokens += segment.num_outputs;
  ++sequence->steps_in_flight;
  tenants_.Serve(sequence->tenant, segment.num_rows);
}

void Scheduler::Preempt(Sequence* sequence) {
  running_.Remove(sequence);
  sequence->state = SequenceState::kPreempted;
  ++sequence->preemptions;
  if (sequence->group != nullptr) waiting_.Recount(*sequence->group);
  ++preemptions_;
  ++unsettled_;
  Settle(sequence);
}

void Scheduler::GiveBack(Sequence* sequence) {
  pool_->Release(sequence->blocks);
  sequence->blocks.clear();
  slots_.GiveBack(std::exchange(sequence->slot, -1));
}

bool Scheduler::SomeWillFree() const {
  if (unsettled_ > 0) return true;
  return std::any_of(running_.begin(), running_.end(), [](const Sequence* s) { return s->all_planned(); });
}

}  // namespace ridge::worker
