#include "worker/decision/waiting_queue.h"

#include <tuple>

#include "common/check.h"

namespace ridge::worker {

void WaitingQueue::Add(Sequence* sequence) {
  const bool added =
      lines_[{sequence->tenant, sequence->spec.priority}].emplace(sequence->id, sequence).second;
  RIDGE_CHECK(added);
  ++size_;
  tokens_ += sequence->prompt_tokens();
}

void WaitingQueue::Remove(Sequence* sequence) {
  const auto line = lines_.find({sequence->tenant, sequence->spec.priority});
  RIDGE_CHECK(line != lines_.end() && line->second.erase(sequence->id) == 1);
  if (line->second.empty()) lines_.erase(line);
  --size_;
  tokens_ -= sequence->prompt_tokens();
}

Sequence* WaitingQueue::Next(int64_t now_ns) const {
  // Smallest first.
  const auto rank = [now_ns](const Sequence& sequence) {
    const int64_t priority = sequence.spec.priority + (now_ns - sequence.spec.arrival_ns) / kAgeingNs;
    return std::tuple(-priority, sequence.tenant->served_rows, sequence.id);
  };
  Sequence* next = nullptr;
  for (const auto& [key, line] : lines_) {
    Sequence* head = line.begin()->second;
    if (next == nullptr || rank(*head) < rank(*next)) next = head;
  }
  return next;
}

}  // namespace ridge::worker
