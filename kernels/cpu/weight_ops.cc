#include "kernels/cpu/weight_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/weight_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

using BitsTag = hn::ScalableTag<uint16_t>;
inline constexpr BitsTag kBits;

// Bits without the sign, from which on fp16 cannot hold a number: infinity as fp16, 65,536 as bfloat16 (the
// number below is 65,280), and half way between fp16's largest number and the next power of two.
inline constexpr uint16_t kHalfLimit = 0x7C00;
inline constexpr uint16_t kBf16Limit = 0x4780;
inline constexpr float kFloatLimit = 65520.0f;

HWY_INLINE uint16_t LoadBits(const char* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

bool WeightsFromF16Target(const char* from, int64_t size, Half* to) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(kBits));
  const auto magnitude = hn::Set(kBits, uint16_t{0x7FFF});
  auto largest = hn::Zero(kBits);
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto bits = hn::LoadU(kBits, reinterpret_cast<const uint16_t*>(from + 2 * i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
    hn::StoreU(bits, kBits, to + i);
  }
  uint16_t rest = hn::GetLane(hn::MaxOfLanes(kBits, largest));
  for (; i < size; ++i) {
    to[i] = LoadBits(from + 2 * i);
    rest = std::max<uint16_t>(rest, to[i] & 0x7FFF);
  }
  return rest < kHalfLimit;
}

bool WeightsFromBf16Target(const char* from, int64_t size, Half* to) {
  const hn::Rebind<uint16_t, FloatTag> bits_tag;
  const hn::RebindToUnsigned<FloatTag> wide_tag;
  const auto magnitude = hn::Set(wide_tag, 0x7FFF0000u);
  auto largest = hn::Zero(wide_tag);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const auto bits = hn::LoadU(bits_tag, reinterpret_cast<const uint16_t*>(from + 2 * i));
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(wide_tag, bits));
    largest = hn::Max(largest, hn::And(wide, magnitude));
    StoreHalf(hn::BitCast(kFloat, wide), to + i);
  }
  uint32_t rest = hn::GetLane(hn::MaxOfLanes(wide_tag, largest));
  for (; i < size; ++i) {
    const uint32_t wide = uint32_t{LoadBits(from + 2 * i)} << 16;
    rest = std::max(rest, wide & 0x7FFF0000u);
    to[i] = FloatToHalf(std::bit_cast<float>(wide));
  }
  return rest < uint32_t{kBf16Limit} << 16;
}

bool WeightsFromF32Target(const float* from, int64_t size, Half* to) {
  const FloatVec limit = hn::Set(kFloat, kFloatLimit);
  auto fit = hn::Eq(limit, limit);
  bool rest_fits = true;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const FloatVec value = hn::LoadU(kFloat, from + i);
    fit = hn::And(fit, hn::Lt(hn::Abs(value), limit));  // false for what is no number
    StoreHalf(value, to + i);
  }
  for (; i < size; ++i) {
    rest_fits &= std::fabs(from[i]) < kFloatLimit;
    to[i] = FloatToHalf(from[i]);
  }
  return rest_fits && hn::AllTrue(kFloat, fit);
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {

HWY_EXPORT(WeightsFromF16Target);
HWY_EXPORT(WeightsFromBf16Target);
HWY_EXPORT(WeightsFromF32Target);

bool WeightsFromF16(const char* from, int64_t size, Half* to) {
  return HWY_DYNAMIC_DISPATCH(WeightsFromF16Target)(from, size, to);
}

bool WeightsFromBf16(const char* from, int64_t size, Half* to) {
  return HWY_DYNAMIC_DISPATCH(WeightsFromBf16Target)(from, size, to);
}

bool WeightsFromF32(const float* from, int64_t size, Half* to) {
  return HWY_DYNAMIC_DISPATCH(WeightsFromF32Target)(from, size, to);
}

}  // namespace ridge::kernels::cpu
#endif
