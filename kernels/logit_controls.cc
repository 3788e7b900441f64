#include "kernels/logit_controls.h"

#include <algorithm>
#include <cmath>

namespace ridge::kernels {

void ApplyControls(const RowControls& controls, absl::Span<float> logits) {
  if (!controls.occurrences.empty()) {
    for (size_t id = 0; id < logits.size(); ++id)
      logits[id] = Penalise(logits[id], controls.occurrences[id], controls.penalties);
  }
  for (const LogitBias& entry : controls.bias) logits[static_cast<size_t>(entry.id)] += entry.bias;
  if (!controls.allowed.empty()) {
    for (size_t id = 0; id < logits.size(); ++id) {
      if ((controls.allowed[id / 32] >> (id % 32) & 1) == 0) logits[id] = -INFINITY;
    }
  }
  for (const absl::Span<const int32_t> banned : {controls.banned, controls.also_banned}) {
    for (const int32_t id : banned) logits[static_cast<size_t>(id)] = -INFINITY;
  }
}

void TopIds(absl::Span<const float> logits, int32_t count, std::vector<int32_t>* top) {
  const size_t size = std::min(static_cast<size_t>(count), logits.size());
  top->clear();
  if (size == 0) return;
  const auto before = [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  };
  for (size_t id = 0; id < logits.size(); ++id) {
    // Ids ascend, so that one that only equals the last of the top stays behind it.
    if (top->size() == size) {
      if (!(logits[id] > logits[static_cast<size_t>(top->back())])) continue;
      top->pop_back();
    }
    const auto own = static_cast<int32_t>(id);
    top->insert(std::upper_bound(top->begin(), top->end(), own, before), own);
  }
}

}  // namespace ridge::kernels
