// What the host remembers of the slots, whose state is on the card: enough to check plans and to know where
// the next entry of a block table goes. Used by the engine thread alone. A plan that does not fit is a bug of
// the engine: CHECK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/backend/step_plan.h"

namespace ridge::worker {

class SlotMirror {
 public:
  struct Slot {
    bool attached = false;
    bool has_token = false;     // something was sampled
    bool greedy = false;        // takes the arg max, and wants no log-probability
    bool controlled = false;    // every output row has controls
    int32_t late_position = 0;  // and output rows for tokens before it
    int32_t top = 0;            // most likely tokens that an output row reports
    int32_t prompt_top = 0;     // and a scored one
    int32_t num_blocks = 0;
  };

  SlotMirror(int32_t max_slots, int32_t num_blocks, int32_t max_slot_blocks);

  void Release(SlotId id);
  void Attach(const SlotAttach& attach);
  // The index in the slot's block table that the block takes.
  int32_t Append(SlotId id, BlockId block);
  // An attached slot.
  Slot& at(SlotId id);

 private:
  const int32_t num_blocks_;
  const int32_t max_slot_blocks_;
  std::vector<Slot> slots_;
};

}  // namespace ridge::worker
