#include "worker/backend/cpu/slot_table.h"

#include "common/check.h"

namespace ridge::worker {

SlotTable::SlotTable(int32_t max_slots, int32_t num_blocks, int32_t context_length)
    : num_blocks_(num_blocks),
      max_slot_blocks_(static_cast<size_t>((context_length + kBlockTokens - 1) / kBlockTokens)),
      slots_(static_cast<size_t>(max_slots)) {
  for (Slot& slot : slots_) slot.blocks.reserve(max_slot_blocks_);
}

void SlotTable::Apply(const StepPlan& plan) {
  for (SlotId id : plan.releases) {
    Slot& slot = at(id);
    slot.attached = false;
    slot.last_token = -1;
    slot.blocks.clear();
  }
  RIDGE_CHECK(plan.copies.empty() && plan.targets.empty() && plan.banned.empty());
  for (const SlotAttach& attach : plan.attaches) {
    RIDGE_CHECK(!attach.sampling.has_penalties() && attach.sampling.top_logprobs == 0 &&
                attach.controls.empty());
    RIDGE_CHECK(attach.slot >= 0 && static_cast<size_t>(attach.slot) < slots_.size());
    Slot& slot = slots_[static_cast<size_t>(attach.slot)];
    RIDGE_CHECK(!slot.attached);
    slot.attached = true;
    slot.sampling = attach.sampling;
  }
  for (const BlockAppend& append : plan.appends) {
    Slot& slot = at(append.slot);
    RIDGE_CHECK(append.block >= 0 && append.block < num_blocks_);
    RIDGE_CHECK(slot.blocks.size() < max_slot_blocks_);
    slot.blocks.push_back(append.block);
  }
}

Slot& SlotTable::at(SlotId id) {
  RIDGE_CHECK(id >= 0 && static_cast<size_t>(id) < slots_.size());
  Slot& slot = slots_[static_cast<size_t>(id)];
  RIDGE_CHECK(slot.attached);
  return slot;
}

}  // namespace ridge::worker
