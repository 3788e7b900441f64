#include "kernels/cpu/layer_ops.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

// Calls `whole(i)` for full registers and `rest(i)` for the elements that are left.
template <class Whole, class Rest>
HWY_INLINE void ForEach(int64_t size, const Whole& whole, const Rest& rest) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) whole(i);
  for (; i < size; ++i) rest(i);
}

// Sum of f over [0, size) in virtual lanes. `whole` and `rest` add element i's term to an accumulator.
template <class Whole, class Rest>
HWY_INLINE float SumVirtualLanes(int64_t size, const Whole& whole, const Rest& rest) {
  FloatVec parts[kParts];
  for (FloatVec& part : parts) part = hn::Zero(kFloat);
  int64_t i = 0;
  for (; i + kVirtualLanes <= size; i += kVirtualLanes) {
    for (int part = 0; part < kParts; ++part) parts[part] = whole(i + part * kLanes, parts[part]);
  }
  if (i < size) {
    HWY_ALIGN float lanes[kVirtualLanes];
    for (int part = 0; part < kParts; ++part) hn::Store(parts[part], kFloat, lanes + part * kLanes);
    for (int lane = 0; i < size; ++i, ++lane) lanes[lane] = rest(i, lanes[lane]);
    for (int part = 0; part < kParts; ++part) parts[part] = hn::Load(kFloat, lanes + part * kLanes);
  }
  return SumLanes(parts);
}

// 1 / sqrt(mean(x^2) + eps).
HWY_INLINE float NormScale(const float* x, float eps, int64_t size) {
  float sum = 0.0f;
  for (int64_t begin = 0; begin < size; begin += kNormGroup) {
    const float* group = x + begin;
    sum += SumVirtualLanes(
        std::min<int64_t>(kNormGroup, size - begin),
        [&](int64_t i, FloatVec acc) {
          const FloatVec value = hn::LoadU(kFloat, group + i);
          return hn::MulAdd(value, value, acc);
        },
        [&](int64_t i, float acc) { return std::fma(group[i], group[i], acc); });
  }
  return Rsqrt(sum / static_cast<float>(size) + eps);
}

void RmsNormTarget(const float* x, const float* weight, float eps, int64_t size, float* out,
                   int64_t* saturations) {
  const float scale = NormScale(x, eps, size);
  ForEach(
      size,
      [&](int64_t i) {
        const FloatVec scaled = hn::Mul(hn::LoadU(kFloat, x + i), hn::Set(kFloat, scale));
        hn::StoreU(RoundVecToHalf(hn::Mul(scaled, hn::LoadU(kFloat, weight + i)), saturations), kFloat,
                   out + i);
      },
      [&](int64_t i) { out[i] = RoundToHalf(x[i] * scale * weight[i], saturations); });
}

void NormHeadTarget(const float* weight, float eps, int64_t head_dim, float* x) {
  const float scale = NormScale(x, eps, head_dim);
  ForEach(
      head_dim,
      [&](int64_t i) {
        const FloatVec scaled = hn::Mul(hn::LoadU(kFloat, x + i), hn::Set(kFloat, scale));
        hn::StoreU(hn::Mul(scaled, hn::LoadU(kFloat, weight + i)), kFloat, x + i);
      },
      [&](int64_t i) { x[i] = x[i] * scale * weight[i]; });
}

void RotateHeadTarget(const float* cosines, const float* sines, int64_t head_dim, float* x,
                      int64_t* saturations) {
  const int64_t half = head_dim / 2;
  ForEach(
      half,
      [&](int64_t i) {
        const FloatVec low = hn::LoadU(kFloat, x + i);
        const FloatVec high = hn::LoadU(kFloat, x + i + half);
        const FloatVec c = hn::LoadU(kFloat, cosines + i);
        const FloatVec s = hn::LoadU(kFloat, sines + i);
        hn::StoreU(RoundVecToHalf(hn::MulAdd(low, c, hn::Neg(hn::Mul(high, s))), saturations), kFloat, x + i);
        hn::StoreU(RoundVecToHalf(hn::MulAdd(high, c, hn::Mul(low, s)), saturations), kFloat, x + i + half);
      },
      [&](int64_t i) {
        const float low = x[i], high = x[i + half];
        x[i] = RoundToHalf(std::fma(low, cosines[i], -(high * sines[i])), saturations);
        x[i + half] = RoundToHalf(std::fma(high, cosines[i], low * sines[i]), saturations);
      });
}

void RoundRowTarget(int64_t size, float* x, int64_t* saturations) {
  ForEach(
      size,
      [&](int64_t i) { hn::StoreU(RoundVecToHalf(hn::LoadU(kFloat, x + i), saturations), kFloat, x + i); },
      [&](int64_t i) { x[i] = RoundToHalf(x[i], saturations); });
}

void SwiGluTarget(const float* gate, const float* up, int64_t size, float* out, int64_t* saturations) {
  ForEach(
      size,
      [&](int64_t i) {
        const FloatVec g = hn::LoadU(kFloat, gate + i);
        const FloatVec silu = hn::Div(g, hn::Add(hn::Set(kFloat, 1.0f), ExpVec(hn::Neg(g))));
        hn::StoreU(RoundVecToHalf(hn::Mul(silu, hn::LoadU(kFloat, up + i)), saturations), kFloat, out + i);
      },
      [&](int64_t i) { out[i] = RoundToHalf(gate[i] / (1.0f + Exp(-gate[i])) * up[i], saturations); });
}

void ToHalfTarget(const float* from, int64_t size, Half* to) {
  ForEach(
      size, [&](int64_t i) { StoreHalf(hn::LoadU(kFloat, from + i), to + i); },
      [&](int64_t i) { to[i] = FloatToHalf(from[i]); });
}

void ToHalfStridedTarget(const float* from, int64_t size, int64_t stride, Half* to) {
  ForEach(
      size,
      [&](int64_t i) {
        HWY_ALIGN Half lanes[kLanes];
        StoreHalf(hn::LoadU(kFloat, from + i), lanes);
        for (int lane = 0; lane < kLanes; ++lane) to[(i + lane) * stride] = lanes[lane];
      },
      [&](int64_t i) { to[i * stride] = FloatToHalf(from[i]); });
}

void FromHalfTarget(const Half* from, int64_t size, float* to) {
  ForEach(
      size, [&](int64_t i) { hn::StoreU(LoadHalf(from + i), kFloat, to + i); },
      [&](int64_t i) { to[i] = HalfToFloat(from[i]); });
}

float RowMaxTarget(const float* x, int64_t size) {
  FloatVec max_vec = hn::Set(kFloat, x[0]);
  float max = x[0];
  ForEach(
      size, [&](int64_t i) { max_vec = hn::Max(hn::LoadU(kFloat, x + i), max_vec); },
      [&](int64_t i) { max = std::max(max, x[i]); });
  return std::max(max, hn::GetLane(hn::MaxOfLanes(kFloat, max_vec)));
}

void ExpRowTarget(const float* x, float offset, int64_t size, float* out) {
  ForEach(
      size,
      [&](int64_t i) {
        hn::StoreU(ExpVec(hn::Sub(hn::LoadU(kFloat, x + i), hn::Set(kFloat, offset))), kFloat, out + i);
      },
      [&](int64_t i) { out[i] = Exp(x[i] - offset); });
}

float LogSumExpTarget(const float* logits, int64_t size) {
  float max = -INFINITY, sum = 0.0f;
  for (int64_t begin = 0; begin < size; begin += kVocabularySlice) {
    const float* slice = logits + begin;
    const int64_t length = std::min<int64_t>(kVocabularySlice, size - begin);
    const float slice_max = RowMaxTarget(slice, length);
    const FloatVec slice_max_vec = hn::Set(kFloat, slice_max);
    const float slice_sum = SumVirtualLanes(
        length,
        [&](int64_t i, FloatVec acc) {
          return hn::Add(acc, ExpVec(hn::Sub(hn::LoadU(kFloat, slice + i), slice_max_vec)));
        },
        [&](int64_t i, float acc) { return acc + Exp(slice[i] - slice_max); });
    const float new_max = std::max(max, slice_max);
    sum = std::fma(sum, Exp(max - new_max), slice_sum * Exp(slice_max - new_max));
    max = new_max;
  }
  return max + Log(sum);
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {

HWY_EXPORT(RmsNormTarget);
HWY_EXPORT(NormHeadTarget);
HWY_EXPORT(RotateHeadTarget);
HWY_EXPORT(RoundRowTarget);
HWY_EXPORT(SwiGluTarget);
HWY_EXPORT(ToHalfTarget);
HWY_EXPORT(ToHalfStridedTarget);
HWY_EXPORT(FromHalfTarget);
HWY_EXPORT(RowMaxTarget);
HWY_EXPORT(ExpRowTarget);
HWY_EXPORT(LogSumExpTarget);

void RmsNorm(const float* x, const float* weight, float eps, int64_t size, float* out, int64_t* saturations) {
  HWY_DYNAMIC_DISPATCH(RmsNormTarget)(x, weight, eps, size, out, saturations);
}

void NormHead(const float* weight, float eps, int64_t head_dim, float* x) {
  HWY_DYNAMIC_DISPATCH(NormHeadTarget)(weight, eps, head_dim, x);
}

void RotateHead(const float* cosines, const float* sines, int64_t head_dim, float* x, int64_t* saturations) {
  HWY_DYNAMIC_DISPATCH(RotateHeadTarget)(cosines, sines, head_dim, x, saturations);
}

void RoundRow(int64_t size, float* x, int64_t* saturations) {
  HWY_DYNAMIC_DISPATCH(RoundRowTarget)(size, x, saturations);
}

void SwiGlu(const float* gate, const float* up, int64_t size, float* out, int64_t* saturations) {
  HWY_DYNAMIC_DISPATCH(SwiGluTarget)(gate, up, size, out, saturations);
}

void ToHalf(const float* from, int64_t size, Half* to) {
  HWY_DYNAMIC_DISPATCH(ToHalfTarget)(from, size, to);
}

void ToHalfStrided(const float* from, int64_t size, int64_t stride, Half* to) {
  HWY_DYNAMIC_DISPATCH(ToHalfStridedTarget)(from, size, stride, to);
}

void FromHalf(const Half* from, int64_t size, float* to) {
  HWY_DYNAMIC_DISPATCH(FromHalfTarget)(from, size, to);
}

float RowMax(const float* x, int64_t size) {
  return HWY_DYNAMIC_DISPATCH(RowMaxTarget)(x, size);
}

void ExpRow(const float* x, float offset, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpRowTarget)(x, offset, size, out);
}

float LogSumExp(const float* logits, int64_t size) {
  return HWY_DYNAMIC_DISPATCH(LogSumExpTarget)(logits, size);
}

}  // namespace ridge::kernels::cpu
#endif
