#include <algorithm>
#include <vector>

#include "common/check.h"
#include "worker/decision/scheduler.h"

namespace ridge::worker {

void Scheduler::CheckInvariant(const std::vector<const Sequence*>& sequences) const {
  std::vector<int32_t> readers(pool_->num_blocks(), 0);
  std::vector<bool> slot_taken(slots_.count(), false);
  for (SlotId slot : slots_.free()) {
    RIDGE_CHECK(!slot_taken[slot]);
    slot_taken[slot] = true;
  }
  for (const Slots::Held& held : slots_.held()) {
    RIDGE_CHECK(!slot_taken[held.slot]);
    slot_taken[held.slot] = true;
    for (BlockId block : held.blocks) ++readers[block];
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
  RIDGE_CHECK(waiting == num_waiting() && running == num_running());
  RIDGE_CHECK(static_cast<int32_t>(sequences.size()) == waiting + running + unsettled_);
  pool_->CheckInvariant(readers);
}

}  // namespace ridge::worker
