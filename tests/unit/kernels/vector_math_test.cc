// The vector forms of the elementary functions against the scalar ones, bit for bit, on every instruction set
// that was compiled and that this machine has.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/kernels/vector_math_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"
#include "tests/unit/kernels/instruction_sets.h"

// This file is read once for each instruction set; what follows is wanted once.
#ifndef RIDGE_TESTS_VECTOR_MATH_RESULTS_
#define RIDGE_TESTS_VECTOR_MATH_RESULTS_
namespace ridge::kernels::cpu {

// What each function makes of 16 values.
struct Results {
  float exp2[kVirtualLanes], exp[kVirtualLanes], half[kVirtualLanes];
  Half stored[kVirtualLanes];
  float sum;
  int64_t saturations = 0;
};

}  // namespace ridge::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

void ApplyTarget(const float* x, Results* results) {
  FloatVec parts[kParts];
  for (int part = 0; part < kParts; ++part) {
    const int at = part * kLanes;
    const FloatVec value = hn::LoadU(kFloat, x + at);
    parts[part] = value;
    hn::StoreU(Exp2Vec(value), kFloat, results->exp2 + at);
    hn::StoreU(ExpVec(value), kFloat, results->exp + at);
    hn::StoreU(RoundVecToHalf(value, &results->saturations), kFloat, results->half + at);
    StoreHalf(value, results->stored + at);
  }
  results->sum = SumLanes(parts);
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {
namespace {

HWY_EXPORT(ApplyTarget);

uint32_t Bits(float value) {
  return std::bit_cast<uint32_t>(value);
}

void ExpectScalarResults(const float* x) {
  Results results;
  HWY_DYNAMIC_DISPATCH(ApplyTarget)(x, &results);
  int64_t saturations = 0;
  float sums[kVirtualLanes];
  for (int i = 0; i < kVirtualLanes; ++i) {
    ASSERT_EQ(Bits(results.exp2[i]), Bits(Exp2(x[i]))) << x[i];
    ASSERT_EQ(Bits(results.exp[i]), Bits(Exp(x[i]))) << x[i];
    ASSERT_EQ(Bits(results.half[i]), Bits(RoundToHalf(x[i], &saturations))) << x[i];
    ASSERT_EQ(results.stored[i], FloatToHalf(x[i])) << x[i];
    sums[i] = x[i];
  }
  for (int width = kVirtualLanes / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  if (!std::isnan(sums[0])) {
    ASSERT_EQ(Bits(results.sum), Bits(sums[0]));
  }
  ASSERT_EQ(results.saturations, saturations);
}

TEST(VectorMath, GivesTheScalarFunctionsBits) {
  const std::vector<int64_t> sets = InstructionSets();
  if (sets.empty()) GTEST_SKIP() << "this machine cannot run the CPU kernels";
  for (const int64_t set : sets) {
    SCOPED_TRACE(hwy::TargetName(set));
    const OnlyInstructionSet only(set);
    float x[kVirtualLanes];
    // Every 997th float of either sign, infinities included.
    uint32_t bits = 0;
    while (bits <= Bits(INFINITY)) {
      for (float& value : x) {
        value = std::bit_cast<float>(std::min(bits, Bits(INFINITY)) | (bits & 1) << 31);
        bits += 997;
      }
      ExpectScalarResults(x);
      if (HasFatalFailure()) break;
    }
    // The range that matters, at random.
    std::mt19937 random(3);
    std::uniform_real_distribution<float> range(-160.0f, 130.0f);
    for (int i = 0; i < 100000 && !HasFatalFailure(); ++i) {
      for (float& value : x) value = range(random);
      ExpectScalarResults(x);
    }
  }
}

}  // namespace
}  // namespace ridge::kernels::cpu
#endif
