#include "worker/backend/cpu/slot_table.h"

#include <algorithm>

#include "common/check.h"

namespace ridge::worker {

SlotTable::SlotTable(int32_t max_slots, int32_t num_blocks, int32_t context_length, int32_t vocab_size)
    : num_blocks_(num_blocks),
      vocab_size_(vocab_size),
      max_slot_blocks_(static_cast<size_t>((context_length + kBlockTokens - 1) / kBlockTokens)),
      slots_(static_cast<size_t>(max_slots)) {
  for (Slot& slot : slots_) slot.blocks.reserve(max_slot_blocks_);
}

void SlotTable::Apply(const StepPlan& plan) {
  for (SlotId id : plan.releases) {
    Slot& slot = at(id);
    slot.attached = false;
    slot.last_token = -1;
    slot.controls = SlotControls();
    slot.blocks.clear();
  }
  for (const SlotAttach& attach : plan.attaches) {
    RIDGE_CHECK(attach.slot >= 0 && static_cast<size_t>(attach.slot) < slots_.size());
    Slot& slot = slots_[static_cast<size_t>(attach.slot)];
    RIDGE_CHECK(!slot.attached);
    for (int32_t top : {attach.sampling.top_logprobs, attach.sampling.prompt_top_logprobs})
      RIDGE_CHECK(top >= 0 && top <= std::min(kMaxTopLogprobs, vocab_size_));
    slot.attached = true;
    slot.sampling = attach.sampling;
    slot.controls = SlotControls(attach, vocab_size_);
  }
  for (const BlockAppend& append : plan.appends) {
    Slot& slot = at(append.slot);
    RIDGE_CHECK(append.block >= 0 && append.block < num_blocks_);
    RIDGE_CHECK(slot.blocks.size() < max_slot_blocks_);
    slot.blocks.push_back(append.block);
  }
  for (const BlockCopy& copy : plan.copies) {
    RIDGE_CHECK(copy.from >= 0 && copy.from < num_blocks_ && copy.to >= 0 && copy.to < num_blocks_ &&
                copy.from != copy.to);
  }
}

Slot& SlotTable::at(SlotId id) {
  RIDGE_CHECK(id >= 0 && static_cast<size_t>(id) < slots_.size());
  Slot& slot = slots_[static_cast<size_t>(id)];
  RIDGE_CHECK(slot.attached);
  return slot;
}

}  // namespace ridge::worker
