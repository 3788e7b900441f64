// The sequences that wait, and which of them comes next: the highest priority first; among equals the tenant
// that was served least, or of which fewest run; then the oldest. A tenant's class gains one for every
// kAgeingNs that its oldest sequence has waited without anyone of the class being admitted, so that none
// waits for ever, and a long line does not come before other tenants for its length.
//
// Threads: engine thread only. Ownership: sequences and tenants belong to others.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "worker/decision/sequence.h"
#include "worker/decision/tenant_shares.h"

namespace ridge::worker {

class WaitingQueue {
 public:
  // Waiting this long is worth one class of priority.
  static constexpr int64_t kAgeingNs = 10'000'000'000;

  void Add(Sequence* sequence);
  void Remove(Sequence* sequence);
  // One of the choices began or ceased to lend its prompt: what those that wait will compute is counted anew.
  void Recount(const ChoiceGroup& group);

  // Takes out one that is admitted.
  void Admit(Sequence* sequence, int64_t now_ns);

  // The sequence that comes next; null where none waits. Linear in the number of tenants and classes that
  // wait.
  Sequence* Next(int64_t now_ns) const;

  // The one that comes next of those that may pass `refused`, which waits for memory or a slot: of no lower
  // priority, and of tenants that run at least two fewer. Null where there is none.
  Sequence* NextOfSmallerShare(int64_t now_ns, const Sequence& refused) const;

  int32_t size() const { return size_; }
  // Prompt tokens of all of them that are to be computed: a choice does not compute what another lends.
  int64_t tokens() const { return tokens_; }

 private:
  // One tenant's of one class.
  struct Line {
    std::map<SequenceId, Sequence*> sequences;  // in the order of arrival
    int64_t admitted_ns = INT64_MIN;            // when one of them was, the last time
  };

  // The first of the heads that `may_be_next`.
  template <typename Condition>
  Sequence* First(int64_t now_ns, const Condition& may_be_next) const;

  // Adds what a sequence will compute to the counts, or takes it out.
  void Count(const Sequence& sequence, int32_t sign);

  std::map<std::pair<const Tenant*, int32_t>, Line> lines_;  // none is empty
  int32_t size_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace ridge::worker
