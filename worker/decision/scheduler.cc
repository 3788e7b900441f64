#include "worker/decision/scheduler.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "common/check.h"

namespace ridge::worker {
namespace {

// One block in this many stays free of admissions while anything runs.
constexpr int32_t kWatermarkShare = 100;

bool IsSenior(const Sequence* a, const Sequence* b) {
  return std::tuple(-int64_t{a->spec.priority}, a->id) < std::tuple(-int64_t{b->spec.priority}, b->id);
}

bool IsProtected(const Sequence& sequence) {
  return sequence.preemptions >= Scheduler::kMaxPreemptions;
}

bool GoesBefore(const Sequence& waiting, const Sequence& running) {
  return std::tuple(-int64_t{waiting.spec.priority}, waiting.tenant->served_rows) <
         std::tuple(-int64_t{running.spec.priority}, running.tenant->served_rows);
}

bool NeedsBlock(const Sequence& sequence) {
  return sequence.planned_rows == static_cast<int32_t>(sequence.blocks.size()) * kBlockTokens;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, BlockPool* pool, PrefixCache* cache)
    : config_(config), pool_(pool), cache_(cache), watermark_(pool->num_blocks() / kWatermarkShare) {
  RIDGE_CHECK(config.max_running >= 1 && config.step_tokens >= config.max_running &&
              config.chunk_tokens >= 1);
  for (SlotId slot = config.max_running - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(Sequence* sequence) {
  RIDGE_CHECK(sequence->state == SequenceState::kWaiting);
  sequence->tenant = tenants_.Enter(sequence->spec.tenant);
  waiting_.Add(sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  switch (sequence->state) {
    case SequenceState::kWaiting:
      waiting_.Remove(sequence);
      break;
    case SequenceState::kRunning:
      LeaveRunning(sequence);
      ++unsettled_;
      break;
    case SequenceState::kPreempted:
      break;  // it is counted as unsettled already
    case SequenceState::kFinished:
      RIDGE_CHECK(false);
  }
  sequence->state = SequenceState::kFinished;
  tenants_.Leave(std::exchange(sequence->tenant, nullptr));
}

void Scheduler::OnCollected(Sequence* sequence, int32_t rows) {
  sequence->collected_rows += rows;
  --sequence->steps_in_flight;
  // A finished sequence may hold the row of a token that it never had.
  if (!config_.prefix_cache || sequence->state == SequenceState::kFinished) return;
  for (; (sequence->published_blocks + 1) * kBlockTokens <= sequence->collected_rows;
       ++sequence->published_blocks) {
    std::array<TokenId, kBlockTokens> tokens;
    for (int32_t i = 0; i < kBlockTokens; ++i)
      tokens[i] = sequence->token(sequence->published_blocks * kBlockTokens + i);
    sequence->chain = cache_->Publish(sequence->chain, tokens, sequence->blocks[sequence->published_blocks]);
  }
}

void Scheduler::Settle(Sequence* sequence) {
  if (sequence->steps_in_flight > 0) return;
  if (sequence->state == SequenceState::kFinished) {
    if (sequence->slot < 0) return;  // it never ran, or was settled
    --unsettled_;
    GiveBack(sequence);
  } else if (sequence->state == SequenceState::kPreempted) {
    --unsettled_;
    GiveBack(sequence);
    sequence->state = SequenceState::kWaiting;
    waiting_.Add(sequence);
  }
}

ScheduledStep Scheduler::Plan(int64_t now_ns) {
  ScheduledStep step;
  ReserveDecodes(&step);
  PlanDecodes(&step);
  PlanPrompts(now_ns, config_.step_tokens - step.decode_rows, &step);
  if (!step.empty()) step.plan.releases = std::exchange(released_slots_, {});
  return step;
}

void Scheduler::ReserveDecodes(ScheduledStep* step) {
  // The youngest may leave while this goes on: never one before the one at hand.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i];
    if (!sequence->prefill_planned() || sequence->all_planned() || !NeedsBlock(*sequence)) continue;
    if (!ReserveDecode(sequence, step) && sequence->state != SequenceState::kRunning) --i;
  }
}

bool Scheduler::ReserveDecode(Sequence* sequence, ScheduledStep* step) {
  while (pool_->available_blocks() == 0) {
    if (SomeWillFree()) return false;
    Sequence* victim = Victim(*sequence);
    Preempt(victim != nullptr ? victim : sequence);
    if (victim == nullptr) return false;
  }
  sequence->blocks.push_back(pool_->Allocate(1)[0]);
  step->plan.appends.push_back({sequence->slot, sequence->blocks.back()});
  return true;
}

void Scheduler::PlanDecodes(ScheduledStep* step) {
  for (Sequence* sequence : running_) {
    if (!sequence->prefill_planned() || sequence->all_planned() || NeedsBlock(*sequence)) continue;
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

void Scheduler::PlanPrompts(int64_t now_ns, int32_t budget, ScheduledStep* step) {
  bool admits = true;
  while (budget > 0) {
    Sequence* running = NextPrefill(*step);
    Sequence* waiting = admits ? waiting_.Next(now_ns) : nullptr;
    // A running prefill holds memory already: only a tenant that was served less, or a higher class, goes
    // before it.
    if (waiting != nullptr && (running == nullptr || GoesBefore(*waiting, *running))) {
      // Nobody passes one that has to wait for memory or a slot.
      admits = Admit(waiting, step);
      if (admits) PlanChunk(waiting, &budget, step);
    } else if (running != nullptr) {
      PlanChunk(running, &budget, step);
    } else {
      return;
    }
  }
}

Sequence* Scheduler::NextPrefill(const ScheduledStep& step) const {
  Sequence* next = nullptr;
  const auto rank = [](const Sequence& s) {
    return std::tuple(-int64_t{s.spec.priority}, s.tenant->served_rows, s.id);
  };
  for (Sequence* sequence : running_) {
    if (sequence->prefill_planned()) continue;
    if (std::find(step.sequences.begin(), step.sequences.end(), sequence) != step.sequences.end()) continue;
    if (next == nullptr || rank(*sequence) < rank(*next)) next = sequence;
  }
  return next;
}

bool Scheduler::Admit(Sequence* sequence, ScheduledStep* step) {
  while (free_slots_.empty() || !TakeBlocks(sequence)) {
    Sequence* victim = SomeWillFree() ? nullptr : VictimOfGreaterShare(*sequence);
    if (victim == nullptr) return false;
    Preempt(victim);
  }
  waiting_.Remove(sequence);
  sequence->state = SequenceState::kRunning;
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  ++sequence->tenant->running;
  step->plan.attaches.push_back({sequence->slot, sequence->spec.sampling});
  for (BlockId block : sequence->blocks) step->plan.appends.push_back({sequence->slot, block});
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, IsSenior), sequence);
  step->admitted.push_back(sequence);
  return true;
}

bool Scheduler::TakeBlocks(Sequence* sequence) {
  const int32_t known = sequence->known_tokens();
  PrefixCache::Match match{{}, {0, sequence->spec.cache_salt}};
  if (config_.prefix_cache) {
    // The last known token is always computed: its row gives the next one.
    std::vector<TokenId> tokens(known - 1);
    for (int32_t i = 0; i < known - 1; ++i) tokens[i] = sequence->token(i);
    match = cache_->Find(sequence->spec.cache_salt, tokens);
  }
  const int32_t cached = static_cast<int32_t>(match.blocks.size()) * kBlockTokens;
  const int32_t wanted = IsProtected(*sequence)
                             ? BlocksAtLimit(sequence->prompt_tokens(), sequence->spec.max_tokens)
                             : BlocksForTokens(known);
  const int32_t missing = wanted - static_cast<int32_t>(match.blocks.size());
  if (missing > pool_->available_blocks() - (running_.empty() ? 0 : watermark_)) {
    pool_->Release(match.blocks);
    return false;
  }
  const std::vector<BlockId> fresh = pool_->Allocate(missing);
  sequence->blocks = std::move(match.blocks);
  sequence->published_blocks = static_cast<int32_t>(sequence->blocks.size());
  sequence->blocks.insert(sequence->blocks.end(), fresh.begin(), fresh.end());
  sequence->chain = std::move(match.node);
  sequence->prefill_tokens = known;
  sequence->planned_rows = sequence->collected_rows = cached;
  sequence->planned_tokens = static_cast<int32_t>(sequence->generated.size());
  if (sequence->preemptions == 0) sequence->cached_tokens = cached;
  if (config_.prefix_cache) counters_.prefix_queries += known - 1;
  counters_.prefix_hits += cached;
  return true;
}

void Scheduler::PlanChunk(Sequence* sequence, int32_t* budget, ScheduledStep* step) {
  const int32_t begin = sequence->planned_rows;
  const int32_t rows = std::min({sequence->prefill_tokens - begin, config_.chunk_tokens, *budget});
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
  step->prefill_rows += rows;
  *budget -= rows;
}

void Scheduler::AddSegment(const Segment& segment, Sequence* sequence, ScheduledStep* step) {
  step->plan.segments.push_back(segment);
  step->sequences.push_back(sequence);
  sequence->planned_rows += segment.num_rows;
  sequence->planned_tokens += segment.num_outputs;
  ++sequence->steps_in_flight;
  sequence->tenant->served_rows += segment.num_rows;
}

Sequence* Scheduler::Victim(const Sequence& for_whom) const {
  for (auto it = running_.rbegin(); it != running_.rend() && *it != &for_whom; ++it) {
    if (!IsProtected(**it)) return *it;
  }
  return nullptr;
}

Sequence* Scheduler::VictimOfGreaterShare(const Sequence& for_whom) const {
  Sequence* victim = nullptr;
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    Sequence* candidate = *it;
    if (IsProtected(*candidate) || candidate->spec.priority > for_whom.spec.priority) continue;
    if (candidate->tenant->running <= for_whom.tenant->running + 1) continue;
    if (victim == nullptr || candidate->tenant->running > victim->tenant->running) victim = candidate;
  }
  return victim;
}

void Scheduler::Preempt(Sequence* sequence) {
  LeaveRunning(sequence);
  sequence->state = SequenceState::kPreempted;
  ++sequence->preemptions;
  ++counters_.preemptions;
  ++unsettled_;
  Settle(sequence);
}

void Scheduler::LeaveRunning(Sequence* sequence) {
  running_.erase(std::find(running_.begin(), running_.end(), sequence));
  --sequence->tenant->running;
}

void Scheduler::GiveBack(Sequence* sequence) {
  pool_->Release(sequence->blocks);
  sequence->blocks.clear();
  // The plan that reuses the slot also carries its release, and releases are applied first.
  released_slots_.push_back(sequence->slot);
  free_slots_.push_back(sequence->slot);
  sequence->slot = -1;
}

void Scheduler::CheckInvariant(const std::vector<const Sequence*>& sequences) const {
  std::vector<int32_t> readers(pool_->num_blocks(), 0);
  std::vector<bool> slot_taken(config_.max_running, false);
  for (SlotId slot : free_slots_) {
    RIDGE_CHECK(!slot_taken[slot]);
    slot_taken[slot] = true;
  }
  int32_t waiting = 0;
  int32_t running = 0;
  for (const Sequence* sequence : sequences) {
    waiting += sequence->state == SequenceState::kWaiting;
    running += sequence->state == SequenceState::kRunning;
    for (BlockId block : sequence->blocks) ++readers[block];
    if (sequence->state == SequenceState::kWaiting) {
      RIDGE_CHECK(sequence->slot < 0 && sequence->blocks.empty() && sequence->steps_in_flight == 0);
      continue;
    }
    RIDGE_CHECK(sequence->slot >= 0 && !slot_taken[sequence->slot]);
    slot_taken[sequence->slot] = true;
    RIDGE_CHECK(sequence->collected_rows <= sequence->planned_rows);
    RIDGE_CHECK(BlocksForTokens(sequence->planned_rows) <= static_cast<int32_t>(sequence->blocks.size()));
  }
  RIDGE_CHECK(std::find(slot_taken.begin(), slot_taken.end(), false) == slot_taken.end());
  RIDGE_CHECK(waiting == waiting_.size() && running == num_running());
  RIDGE_CHECK(static_cast<int32_t>(sequences.size()) == waiting + running + unsettled_);
  pool_->CheckInvariant(readers);
}

bool Scheduler::SomeWillFree() const {
  if (unsettled_ > 0) return true;
  return std::any_of(running_.begin(), running_.end(), [](const Sequence* s) { return s->all_planned(); });
}

}  // namespace ridge::worker
