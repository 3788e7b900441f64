#include "worker/decision/running_set.h"

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "worker/decision/tenant_shares.h"
#include "worker/decision/waiting_queue.h"

namespace ridge::worker {
namespace {

bool IsSenior(const Sequence* a, const Sequence* b) {
  return std::tuple(-int64_t{a->spec.priority}, a->id) < std::tuple(-int64_t{b->spec.priority}, b->id);
}

bool Contains(const std::vector<Sequence*>& sequences, const Sequence* sequence) {
  return std::find(sequences.begin(), sequences.end(), sequence) != sequences.end();
}

}  // namespace

void RunningSet::Add(Sequence* sequence) {
  sequences_.insert(std::upper_bound(sequences_.begin(), sequences_.end(), sequence, IsSenior), sequence);
  ++sequence->tenant->running;
}

void RunningSet::Remove(Sequence* sequence) {
  const auto it = std::find(sequences_.begin(), sequences_.end(), sequence);
  RIDGE_CHECK(it != sequences_.end());
  sequences_.erase(it);
  --sequence->tenant->running;
}

int64_t RunningSet::PrefillClass(const Sequence& sequence, int64_t now_ns) {
  return sequence.spec.priority + (now_ns - sequence.prefilled_ns) / WaitingQueue::kAgeingNs;
}

Sequence* RunningSet::NextPrefill(int64_t now_ns, const std::vector<Sequence*>& planned) const {
  Sequence* next = nullptr;
  const auto rank = [now_ns](const Sequence& s) {
    return std::tuple(-PrefillClass(s, now_ns), s.tenant->served_rows(), s.tenant->running, s.id);
  };
  for (Sequence* sequence : sequences_) {
    if (sequence->prefill_planned() || Contains(planned, sequence)) continue;
    if (next == nullptr || rank(*sequence) < rank(*next)) next = sequence;
  }
  return next;
}

int64_t RunningSet::PrefillLeft(const Tenant& tenant) const {
  int64_t left = 0;
  for (const Sequence* sequence : sequences_) {
    if (sequence->tenant == &tenant) left += std::max(sequence->prefill_tokens - sequence->planned_rows, 0);
  }
  return left;
}

Sequence* RunningSet::Victim(const Sequence& for_whom) const {
  for (auto it = sequences_.rbegin(); it != sequences_.rend() && *it != &for_whom; ++it) {
    if (!IsProtected(**it)) return *it;
  }
  return nullptr;
}

Sequence* RunningSet::VictimOfGreaterShare(const Sequence& for_whom,
                                           const std::vector<Sequence*>& admitted) const {
  Sequence* victim = nullptr;
  for (auto it = sequences_.rbegin(); it != sequences_.rend(); ++it) {
    Sequence* candidate = *it;
    if (IsProtected(*candidate) || candidate->spec.priority > for_whom.spec.priority) continue;
    if (candidate->tenant->running <= for_whom.tenant->running + 1) continue;
    if (victim != nullptr && candidate->tenant->running <= victim->tenant->running) continue;
    if (!Contains(admitted, candidate)) victim = candidate;
  }
  return victim;
}

}  // namespace ridge::worker
