// What the CPU kernels share: the virtual vector of 16 lanes, fp16 rounding and the exponentials, in Highway.
//
// Included once for each instruction set that Highway compiles for; the usual guard of such files follows.
#if defined(RIDGE_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RIDGE_KERNELS_CPU_VECTOR_INL_H_
#undef RIDGE_KERNELS_CPU_VECTOR_INL_H_
#else
#define RIDGE_KERNELS_CPU_VECTOR_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/half.h"
#include "kernels/math.h"
#include "kernels/order.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: wider registers are cut, narrower ones come in parts.
using FloatTag = hn::CappedTag<float, kVirtualLanes>;
using FloatVec = hn::Vec<FloatTag>;
using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;
inline constexpr FloatTag kFloat;
inline constexpr HalfTag kHalf;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
// Registers that make up a virtual vector.
inline constexpr int kParts = kVirtualLanes / kLanes;

HWY_INLINE FloatVec LoadHalf(const Half* from) {
  return hn::PromoteTo(kFloat, hn::LoadU(kHalf, reinterpret_cast<const hwy::float16_t*>(from)));
}

// Clamps to fp16's range and rounds to it; the result is a float. Counts the clamped lanes.
HWY_INLINE FloatVec RoundVecToHalf(FloatVec value, int64_t* saturations) {
  const FloatVec limit = hn::Set(kFloat, kHalfMax);
  const auto beyond = hn::Gt(hn::Abs(value), limit);
  if (HWY_UNLIKELY(!hn::AllFalse(kFloat, beyond))) *saturations += hn::CountTrue(kFloat, beyond);
  const FloatVec clamped = hn::IfThenElse(beyond, hn::CopySign(limit, value), value);
  return hn::PromoteTo(kFloat, hn::DemoteTo(kHalf, clamped));
}

HWY_INLINE void StoreHalf(FloatVec value, Half* to) {
  hn::StoreU(hn::DemoteTo(kHalf, value), kHalf, reinterpret_cast<hwy::float16_t*>(to));
}

// The sum of a register's lanes by halves: (i, i + n / 2), then the same of what is left.
template <class Tag>
HWY_INLINE float SumByHalves([[maybe_unused]] Tag tag, hn::Vec<Tag> lanes) {
#if HWY_TARGET != HWY_SCALAR  // which has one lane, and not these operations
  if constexpr (hn::MaxLanes(tag) > 4) {
    const hn::Half<Tag> half;
    return SumByHalves(half, hn::Add(hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
  }
  lanes = hn::Add(lanes, hn::Shuffle1032(lanes));
  lanes = hn::Add(lanes, hn::Shuffle2301(lanes));
#endif
  return hn::GetLane(lanes);
}

// The sum of a virtual vector's lanes in the contract's order.
HWY_INLINE float SumLanes(const FloatVec (&parts)[kParts]) {
  FloatVec sums[kParts];
  for (int part = 0; part < kParts; ++part) sums[part] = parts[part];
  for (int width = kParts / 2; width >= 1; width /= 2) {
    for (int part = 0; part < width; ++part) sums[part] = hn::Add(sums[part], sums[part + width]);
  }
  return SumByHalves(kFloat, sums[0]);
}

HWY_INLINE FloatVec EvaluateVec(const Polynomial7& polynomial, FloatVec x) {
  FloatVec sum = hn::Set(kFloat, polynomial.terms[6]);
  for (int i = 5; i >= 0; --i) sum = hn::MulAdd(sum, x, hn::Set(kFloat, polynomial.terms[i]));
  return hn::MulAdd(sum, x, hn::Set(kFloat, 1.0f));
}

HWY_INLINE FloatVec ScaleVecByPowerOfTwo(FloatVec value, FloatVec n) {
  const hn::RebindToSigned<FloatTag> int_tag;
  const auto exponent = hn::ConvertTo(int_tag, n);
  const auto half = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(int_tag, 127);
  const FloatVec first = hn::BitCast(kFloat, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const FloatVec second = hn::BitCast(kFloat, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  return hn::Mul(hn::Mul(value, first), second);
}

// Exp2 and Exp of kernels/math.h, lane by lane the same operations.
HWY_INLINE FloatVec Exp2Vec(FloatVec x) {
  x = hn::Min(hn::Max(x, hn::Set(kFloat, -160.0f)), hn::Set(kFloat, 130.0f));
  const FloatVec n = hn::Round(x);
  return ScaleVecByPowerOfTwo(EvaluateVec(Exp2Polynomial(), hn::Sub(x, n)), n);
}

HWY_INLINE FloatVec ExpVec(FloatVec x) {
  x = hn::Min(hn::Max(x, hn::Set(kFloat, -110.0f)), hn::Set(kFloat, 90.0f));
  const FloatVec n = hn::Round(hn::Mul(x, hn::Set(kFloat, kLog2E)));
  const FloatVec rest =
      hn::NegMulAdd(n, hn::Set(kFloat, kLn2Low), hn::NegMulAdd(n, hn::Set(kFloat, kLn2High), x));
  return ScaleVecByPowerOfTwo(EvaluateVec(ExpPolynomial(), rest), n);
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
