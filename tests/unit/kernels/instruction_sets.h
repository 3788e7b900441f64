// Runs CPU kernels on a chosen instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "hwy/highway.h"

namespace ridge::kernels::cpu {

// The instruction sets that the kernels are compiled for and that this machine has.
inline std::vector<int64_t> InstructionSets() {
  std::vector<int64_t> sets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const int64_t set = left & -left;
    if (set != HWY_EMU128 && set != HWY_SCALAR) sets.push_back(set);
  }
  return sets;
}

// While it lives, kernels run on this set.
class OnlyInstructionSet {
 public:
  explicit OnlyInstructionSet(int64_t set) { Allow(set); }
  ~OnlyInstructionSet() { Allow(0); }  // 0: the machine's own again

  OnlyInstructionSet(const OnlyInstructionSet&) = delete;
  OnlyInstructionSet& operator=(const OnlyInstructionSet&) = delete;

 private:
  static void Allow(int64_t sets) {
    hwy::SetSupportedTargetsForTest(sets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace ridge::kernels::cpu
