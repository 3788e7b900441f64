// What penalties, biases and masks need of each slot on the card, kept up to date with the plans: allocated
// for all slots, written for those that use them.
//
// Threads: the engine thread. Nothing here waits for the card.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/sampling.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/step_plan.h"

namespace ridge::worker {

class ControlMemory {
 public:
  // `row_stride`: of the logits.
  static absl::StatusOr<ControlMemory> Create(int32_t max_slots, int32_t vocab_size, int64_t row_stride,
                                              cudaStream_t stream);

  kernels::cuda::SlotControls pointers() const;
  int64_t bytes() const { return occurrences_.bytes() + masks_.bytes() + biases_.bytes() + logits_.bytes(); }

  // What a step takes for some attaches and outputs with all of controls, banned tokens and histories of a
  // whole context.
  int64_t UsualStagingBytes(int64_t context_length) const;

  // Enqueues what a plan's attaches and banned tokens change. `staging` holds the data until the step is
  // done. It is grown where more sequences than usual come at once: then alone a step allocates.
  absl::Status Apply(const StepPlan& plan, PinnedMemory* staging, cudaStream_t stream);

 private:
  // What the host remembers of a slot.
  struct SlotState {
    bool has_masks = false;   // they are initialised
    bool has_banned = false;  // the last output row had banned tokens
  };
  class Staging;

  int64_t mask_words() const { return kernels::MaskWords(vocab_size_); }
  int64_t StagingBytes(const StepPlan& plan) const;
  absl::Status Attach(const SlotAttach& attach, Staging* staging, cudaStream_t stream);
  absl::Status Ban(const StepPlan& plan, const Segment& segment, Staging* staging, cudaStream_t stream);

  int32_t vocab_size_ = 0;
  std::vector<SlotState> slots_;
  DeviceMemory occurrences_, masks_, biases_, logits_;
};

// Whether an attach needs the slot's controls from its first row on.
inline bool HasControls(const SlotAttach& attach) {
  return attach.sampling.has_penalties() || !attach.controls.empty();
}

}  // namespace ridge::worker
