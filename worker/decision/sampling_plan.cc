#include "worker/decision/sampling_plan.h"

#include <algorithm>

namespace ridge::worker {

SlotAttach AttachOf(const Sequence& sequence) {
  SlotAttach attach{sequence.slot, sequence.spec.sampling};
  attach.sampling.choice = sequence.choice_number();
  attach.controls = sequence.spec.controls;
  attach.prompt_tokens = sequence.prompt_tokens();
  if (sequence.spec.sampling.has_penalties()) {
    attach.history = sequence.spec.prompt;
    attach.history.insert(attach.history.end(), sequence.generated.begin(), sequence.generated.end());
  }
  return attach;
}

void AddSampling(const Sequence& sequence, Segment* segment, StepPlan* plan) {
  if (sequence.wants_scores()) {
    // A row scores the token behind its own.
    const int32_t begin = segment->first_position + 1;
    const int32_t end = std::min(begin + segment->num_rows, sequence.prompt_tokens());
    segment->num_scored = std::max(end - begin, 0);
    segment->target_offset = static_cast<int32_t>(plan->targets.size());
    for (int32_t position = begin; position < end; ++position)
      plan->targets.push_back(sequence.token(position));
  }
  if (sequence.spec.bans != nullptr && segment->num_outputs > 0) {
    const std::vector<TokenId> banned = sequence.spec.bans->Banned(sequence.ban_state);
    segment->num_banned = static_cast<int32_t>(banned.size());
    segment->banned_offset = static_cast<int32_t>(plan->banned.size());
    plan->banned.insert(plan->banned.end(), banned.begin(), banned.end());
  }
}

}  // namespace ridge::worker
