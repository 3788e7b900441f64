// The sequences that run, by seniority (priority, then arrival), and which of them goes on or gives way next.
//
// Threads: engine thread only. Ownership: sequences belong to others.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/decision/sequence.h"

namespace ridge::worker {

// Who was preempted so often is not preempted again.
inline constexpr int32_t kMaxPreemptions = 3;

inline bool IsProtected(const Sequence& sequence) {
  return sequence.preemptions >= kMaxPreemptions;
}

class RunningSet {
 public:
  void Add(Sequence* sequence);
  void Remove(Sequence* sequence);

  bool empty() const { return sequences_.empty(); }
  int32_t size() const { return static_cast<int32_t>(sequences_.size()); }
  Sequence* at(int32_t i) const { return sequences_[static_cast<size_t>(i)]; }
  std::vector<Sequence*>::const_iterator begin() const { return sequences_.begin(); }
  std::vector<Sequence*>::const_iterator end() const { return sequences_.end(); }

  // The class of a running prefill: its priority, and one for every WaitingQueue::kAgeingNs without a row.
  static int64_t PrefillClass(const Sequence& sequence, int64_t now_ns);

  // The prefill that goes on: of the highest class, then the tenant that was served least, or of which fewest
  // run, then the oldest.
  // None of `planned`; null where there is none.
  Sequence* NextPrefill(int64_t now_ns, const std::vector<Sequence*>& planned) const;

  // What is left of a tenant's prompts.
  int64_t PrefillLeft(const Tenant& tenant) const;

  // The youngest of the lowest priority that may be preempted, if it is younger than this one; else null.
  Sequence* Victim(const Sequence& for_whom) const;

  // The youngest of the tenant that runs most, where that is at least two more than this one's tenant; none
  // of a higher priority, and none of `admitted`: the plan that admits one cannot take it back.
  Sequence* VictimOfGreaterShare(const Sequence& for_whom, const std::vector<Sequence*>& admitted) const;

 private:
  std::vector<Sequence*> sequences_;
};

}  // namespace ridge::worker
