#include "worker/model/half_rows.h"

#include <cmath>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/layer_ops.h"

namespace ridge::worker {
namespace {

// Half way between the largest fp16 number and the next power of two: from here on, rounding overflows.
constexpr float kOverflow = 65520.0f;
constexpr Half kExponentMask = 0x7C00;

}  // namespace

int64_t ConvertToHalf(absl::Span<const float> values, absl::Span<Half> out) {
  RIDGE_CHECK(values.size() == out.size());
  bool all_fit = true;
  for (float value : values) all_fit &= std::fabs(value) < kOverflow;  // false for NaN
  kernels::cpu::ToHalf(values.data(), static_cast<int64_t>(values.size()), out.data());
  if (all_fit) return -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(std::fabs(values[i]) < kOverflow)) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t FindNotFinite(absl::Span<const Half> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if ((values[i] & kExponentMask) == kExponentMask) return static_cast<int64_t>(i);
  }
  return -1;
}

void ExpandBf16(const char* data, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    const uint32_t wide = uint32_t{bits} << 16;
    std::memcpy(&out[i], &wide, sizeof(wide));
  }
}

}  // namespace ridge::worker
