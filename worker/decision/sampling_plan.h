// What a plan says of how a sequence samples: a slot's attach, scored rows, banned tokens. Pure functions of
// the sequence, whose state they do not change.
#pragma once

#include "worker/backend/step_plan.h"
#include "worker/decision/sequence.h"

namespace ridge::worker {

// With everything that makes the slot a function of the tokens so far.
SlotAttach AttachOf(const Sequence& sequence);

// Completes a segment of the sequence with its targets and banned tokens, which go to the plan's lists.
void AddSampling(const Sequence& sequence, Segment* segment, StepPlan* plan);

}  // namespace ridge::worker
