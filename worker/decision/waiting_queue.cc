#include "worker/decision/waiting_queue.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "common/check.h"
#include "worker/decision/forks.h"

namespace ridge::worker {

void WaitingQueue::Add(Sequence* sequence) {
  Line& line = lines_[{sequence->tenant, sequence->spec.priority}];
  RIDGE_CHECK(line.sequences.emplace(sequence->id, sequence).second);
  ++size_;
  sequence->lent_tokens = Forks::LentTokens(*sequence);
  Count(*sequence, 1);
}

void WaitingQueue::Remove(Sequence* sequence) {
  const auto line = lines_.find({sequence->tenant, sequence->spec.priority});
  RIDGE_CHECK(line != lines_.end() && line->second.sequences.erase(sequence->id) == 1);
  if (line->second.sequences.empty()) lines_.erase(line);
  --size_;
  Count(*sequence, -1);
}

void WaitingQueue::Recount(const ChoiceGroup& group) {
  std::optional<int32_t> lent;  // the same for all: they have one prompt
  for (Sequence* choice : group.choices) {
    if (choice->state != SequenceState::kWaiting || choice->held) continue;
    if (!lent.has_value()) lent = Forks::LentTokens(*choice);
    Count(*choice, -1);
    choice->lent_tokens = *lent;
    Count(*choice, 1);
  }
}

void WaitingQueue::Count(const Sequence& sequence, int32_t sign) {
  tokens_ += sign * (sequence.prompt_tokens() - sequence.lent_tokens);
  sequence.tenant->waiting_tokens += sign * (sequence.known_tokens() - sequence.lent_tokens);
}

void WaitingQueue::Admit(Sequence* sequence, int64_t now_ns) {
  lines_.at({sequence->tenant, sequence->spec.priority}).admitted_ns = now_ns;
  Remove(sequence);
}

Sequence* WaitingQueue::Next(int64_t now_ns) const {
  return First(now_ns, [](const Sequence&) { return true; });
}

Sequence* WaitingQueue::NextOfSmallerShare(int64_t now_ns, const Sequence& refused) const {
  return First(now_ns, [&](const Sequence& head) {
    return head.spec.priority >= refused.spec.priority && head.tenant->running + 1 < refused.tenant->running;
  });
}

template <typename Condition>
Sequence* WaitingQueue::First(int64_t now_ns, const Condition& may_be_next) const {
  // Smallest first.
  using Rank = std::tuple<int64_t, int64_t, int32_t, SequenceId>;
  Sequence* first = nullptr;
  Rank smallest;
  for (const auto& [key, line] : lines_) {
    Sequence* head = line.sequences.begin()->second;
    if (!may_be_next(*head)) continue;
    const int64_t waited_ns = now_ns - std::max(head->spec.arrival_ns, line.admitted_ns);
    const Rank rank(-(head->spec.priority + waited_ns / kAgeingNs), head->tenant->served_rows(),
                    head->tenant->running, head->id);
    if (first == nullptr || rank < smallest) {
      first = head;
      smallest = rank;
    }
  }
  return first;
}

}  // namespace ridge::worker
