#include "kernels/cpu/target.h"

#include "hwy/highway.h"

namespace ridge::kernels::cpu {

std::string TargetName() {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  if (supported == 0) return "";
  // Lower bits are better targets.
  const int64_t best = supported & -supported;
  if (best == HWY_EMU128 || best == HWY_SCALAR || best == HWY_SSE4 || best == HWY_SSSE3) return "";
  return hwy::TargetName(best);
}

}  // namespace ridge::kernels::cpu
