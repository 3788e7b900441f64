#include "worker/backend/cuda/slot_mirror.h"

#include "common/check.h"

namespace ridge::worker {

SlotMirror::SlotMirror(int32_t max_slots, int32_t num_blocks, int32_t max_slot_blocks)
    : num_blocks_(num_blocks), max_slot_blocks_(max_slot_blocks), slots_(static_cast<size_t>(max_slots)) {}

void SlotMirror::Release(SlotId id) {
  at(id) = Slot();
}

void SlotMirror::Attach(const SlotAttach& attach) {
  RIDGE_CHECK(attach.slot >= 0 && static_cast<size_t>(attach.slot) < slots_.size());
  Slot& slot = slots_[static_cast<size_t>(attach.slot)];
  RIDGE_CHECK(!slot.attached);
  const SamplingParams& sampling = attach.sampling;
  for (int32_t top : {sampling.top_logprobs, sampling.prompt_top_logprobs})
    RIDGE_CHECK(top >= 0 && top <= kMaxTopLogprobs);
  const TokenControls& controls = attach.controls;
  slot.attached = true;
  slot.greedy = sampling.temperature == 0.0f && !sampling.logprobs;
  slot.controlled = sampling.has_penalties() || !controls.bias.empty() || !controls.allowed_ids.empty() ||
                    !controls.banned_ids.empty();
  slot.late_position = LatePosition(attach);
  slot.top = sampling.logprobs ? sampling.top_logprobs : 0;
  slot.prompt_top = sampling.prompt_top_logprobs;
}

int32_t SlotMirror::Append(SlotId id, BlockId block) {
  Slot& slot = at(id);
  RIDGE_CHECK(block >= 0 && block < num_blocks_);
  RIDGE_CHECK(slot.num_blocks < max_slot_blocks_);
  return slot.num_blocks++;
}

SlotMirror::Slot& SlotMirror::at(SlotId id) {
  RIDGE_CHECK(id >= 0 && static_cast<size_t>(id) < slots_.size());
  Slot& slot = slots_[static_cast<size_t>(id)];
  RIDGE_CHECK(slot.attached);
  return slot;
}

}  // namespace ridge::worker
