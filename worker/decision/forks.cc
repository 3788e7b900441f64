#include "worker/decision/forks.h"

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

void Forks::OnPromptPlanned(Sequence* sequence) {
  if (sequence->group == nullptr || sequence->lends_from_plan >= 0) return;
  sequence->lends_from_plan = plan_ + 1;
  Release(sequence->group);
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
