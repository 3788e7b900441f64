// The device's slots: which are free, and which the device has not been told yet that they are.
//
// In a static batch the slot and the blocks of a sequence that ended are held until the batch has drained.
//
// Threads: engine thread only. Ownership: held blocks have one reader more, which is counted here.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/backend/step_plan.h"

namespace ridge::worker {

class Slots {
 public:
  // What remains of a sequence that ended in a batch.
  struct Held {
    SlotId slot;
    std::vector<BlockId> blocks;
  };

  explicit Slots(int32_t count) : count_(count) {
    for (SlotId slot = count - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  int32_t count() const { return count_; }
  bool any_free() const { return !free_.empty(); }
  const std::vector<SlotId>& free() const { return free_; }

  // Requires that one is free.
  SlotId Take() {
    const SlotId slot = free_.back();
    free_.pop_back();
    return slot;
  }

  // It may be taken again at once: a plan's releases are applied before its attaches.
  void GiveBack(SlotId slot) {
    free_.push_back(slot);
    released_.push_back(slot);
  }

  // For the plan that is submitted next.
  std::vector<SlotId> TakeReleases() { return std::exchange(released_, {}); }

  void Hold(Held held) { held_.push_back(std::move(held)); }
  const std::vector<Held>& held() const { return held_; }
  std::vector<Held> TakeHeld() { return std::exchange(held_, {}); }

 private:
  const int32_t count_;
  std::vector<SlotId> free_;
  std::vector<SlotId> released_;
  std::vector<Held> held_;
};

}  // namespace ridge::worker
