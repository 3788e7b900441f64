// The choices of a request share the K and V of its prompt: the first one computes it, the others are kept
// back until that is planned, then start from what a running choice has, whole blocks by reference and a copy
// of the last one's beginning.
//
// A choice that nobody can lend to (the others finished or were preempted meanwhile) computes the prompt
// itself, as any sequence does. Nobody holds memory while it waits.
//
// Threads: engine thread only. Ownership: sequences belong to others and leave before they go.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/decision/sequence.h"

namespace ridge::worker {

class Forks {
 public:
  // Whether a choice that was just added is kept back: Begin gives it back when its time has come.
  bool Hold(Sequence* sequence);
  // The sequence is finished. True where it was kept back until now.
  bool Remove(Sequence* sequence);

  // A plan begins: the choices that wait for admission from now on.
  std::vector<Sequence*> Begin();
  // A sequence takes memory anew.
  void OnAdmitted(Sequence* sequence) { sequence->lends_from_plan = -1; }
  // All rows of the sequence's prompt are planned; a later plan may read what they write. True where that is
  // new.
  bool OnPromptPlanned(Sequence* sequence);

  // How many tokens of a waiting choice's prompt it will not compute, as things stand: all but the last where
  // a running choice has them, or will have them by the next plan.
  static int32_t LentTokens(const Sequence& sequence);

  // A running choice of the same request whose K and V of the prompt earlier plans have written; null where
  // there is none.
  const Sequence* Lender(const Sequence& sequence) const;

  int32_t num_held() const { return num_held_; }

 private:
  void Release(const std::shared_ptr<ChoiceGroup>& group);

  int64_t plan_ = 0;
  int32_t num_held_ = 0;
  std::vector<std::shared_ptr<ChoiceGroup>> releasing_;  // with the next plan
};

}  // namespace ridge::worker
