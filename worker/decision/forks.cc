#include "worker/decision/forks.h"

#include <algorithm>
#include <utility>

namespace ridge::worker {

bool Forks::Hold(Sequence* sequence) {
  const ChoiceGroup* group = sequence->group.get();
  if (group == nullptr || group->prompt_planned || group->choices.front() == sequence) return false;
  sequence->held = true;
  ++num_held_;
  return true;
}

bool Forks::Remove(Sequence* sequence) {
  if (sequence->group == nullptr) return false;
  std::erase(sequence->group->choices, sequence);
  if (sequence->held) {
    sequence->held = false;
    --num_held_;
    return true;
  }
  Release(sequence->group);
  return false;
}

std::vector<Sequence*> Forks::Begin() {
  ++plan_;
  std::vector<Sequence*> released;
  for (const std::shared_ptr<ChoiceGroup>& group : std::exchange(releasing_, {})) {
    for (Sequence* sequence : group->choices) {
      if (!sequence->held) continue;
      sequence->held = false;
      --num_held_;
      released.push_back(sequence);
    }
  }
  return released;
}

bool Forks::OnPromptPlanned(Sequence* sequence) {
  if (sequence->group == nullptr || sequence->lends_from_plan >= 0) return false;
  sequence->lends_from_plan = plan_ + 1;
  Release(sequence->group);
  return true;
}

int32_t Forks::LentTokens(const Sequence& sequence) {
  if (sequence.group == nullptr) return 0;
  const std::vector<Sequence*>& choices = sequence.group->choices;
  const bool is_lent = std::any_of(choices.begin(), choices.end(), [](const Sequence* other) {
    return other->state == SequenceState::kRunning && other->lends_from_plan >= 0;
  });
  return is_lent ? sequence.prompt_tokens() - 1 : 0;
}

void Forks::Release(const std::shared_ptr<ChoiceGroup>& group) {
  if (!std::exchange(group->prompt_planned, true)) releasing_.push_back(group);
}

const Sequence* Forks::Lender(const Sequence& sequence) const {
  if (sequence.group == nullptr) return nullptr;
  for (const Sequence* other : sequence.group->choices) {
    const bool lends = other->lends_from_plan >= 0 && other->lends_from_plan <= plan_;
    if (other != &sequence && other->state == SequenceState::kRunning && lends) return other;
  }
  return nullptr;
}

}  // namespace ridge::worker
