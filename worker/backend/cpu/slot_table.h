// The backend's slots and the changes that plans make to them. Used by the compute thread alone.
//
// A plan that does not fit (a slot taken twice, a block out of range) is a bug of the engine: CHECK.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/cpu/slot_controls.h"

namespace ridge::worker {

struct Slot {
  bool attached = false;
  SamplingParams sampling;
  SlotControls controls;
  TokenId last_token = -1;      // -1: nothing was sampled yet
  std::vector<BlockId> blocks;  // the block table, in the order of positions
};

class SlotTable {
 public:
  SlotTable(int32_t max_slots, int32_t num_blocks, int32_t context_length, int32_t vocab_size);

  // Releases, attaches and appended blocks of the plan.
  void Apply(const StepPlan& plan);

  // An attached slot.
  Slot& at(SlotId id);

 private:
  const int32_t num_blocks_;
  const int32_t vocab_size_;
  const size_t max_slot_blocks_;
  std::vector<Slot> slots_;
};

}  // namespace ridge::worker
