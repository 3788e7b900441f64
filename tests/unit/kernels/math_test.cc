#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "kernels/half.h"
#include "kernels/math.h"
#include "kernels/order.h"
#include "kernels/philox.h"

namespace ridge::kernels {
namespace {

// Distance in units of the last place of the true value.
double Ulps(float value, double truth) {
  const float nearest = static_cast<float>(truth);
  const double unit = std::nextafter(std::fabs(nearest), INFINITY) - std::fabs(nearest);
  return std::fabs(value - truth) / unit;
}

TEST(Half, ConvertsEveryValueThereAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half = static_cast<Half>(bits);
    const float value = HalfToFloat(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(FloatToHalf(value), half) << bits;
  }
}

TEST(Half, RoundsToTheNearestTiesToEven) {
  EXPECT_EQ(HalfToFloat(FloatToHalf(1.0f + 0x1p-11f)), 1.0f);                // a tie, down to even
  EXPECT_EQ(HalfToFloat(FloatToHalf(1.0f + 3 * 0x1p-11f)), 1.0f + 0x1p-9f);  // a tie, up to even
  EXPECT_EQ(HalfToFloat(FloatToHalf(1.0f + 0x1.002p-11f)), 1.0f + 0x1p-10f);
  EXPECT_EQ(HalfToFloat(FloatToHalf(0x1p-25f)), 0.0f);  // half of the smallest subnormal: a tie
  EXPECT_EQ(HalfToFloat(FloatToHalf(0x1.8p-25f)), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(FloatToHalf(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(HalfToFloat(FloatToHalf(65520.0f))));
}

TEST(Half, SaturatesAndCounts) {
  int64_t saturations = 0;
  EXPECT_EQ(RoundToHalf(1e6f, &saturations), 65504.0f);
  EXPECT_EQ(RoundToHalf(-INFINITY, &saturations), -65504.0f);
  EXPECT_EQ(RoundToHalf(65504.0f, &saturations), 65504.0f);
  EXPECT_EQ(saturations, 2);
}

TEST(Math, ExponentialsAreWithinTwoUlps) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> range(-87.0f, 88.0f);
  double worst_exp = 0, worst_exp2 = 0;
  for (int i = 0; i < 1000000; ++i) {
    const float x = range(random);
    worst_exp = std::max(worst_exp, Ulps(Exp(x), std::exp(static_cast<double>(x))));
    worst_exp2 = std::max(worst_exp2, Ulps(Exp2(x), std::exp2(static_cast<double>(x))));
  }
  EXPECT_LE(worst_exp, 2.0);
  EXPECT_LE(worst_exp2, 2.0);
}

TEST(Math, Exp2OfAProbabilityIsExactEnoughForFp16) {
  double worst = 0;
  for (int i = 0; i <= 1000000; ++i) {
    const float x = -126.0f * static_cast<float>(i) / 1000000;
    const double exact = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::fabs(Exp2OfProbability(x) - exact) / exact);
  }
  EXPECT_LE(worst, 0x1p-18);
  EXPECT_EQ(Exp2OfProbability(0.0f), 1.0f);
  EXPECT_EQ(FloatToHalf(Exp2OfProbability(-INFINITY)), 0);
}

TEST(Math, ExponentialsEndAtZeroAndInfinity) {
  EXPECT_EQ(Exp2(-INFINITY), 0.0f);
  EXPECT_EQ(Exp(-INFINITY), 0.0f);
  EXPECT_EQ(Exp2(0.0f), 1.0f);
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_TRUE(std::isinf(Exp2(1000.0f)));
  EXPECT_TRUE(std::isinf(Exp(1000.0f)));
  EXPECT_EQ(Exp2(-149.0f), 0x1p-149f);
}

TEST(Math, LogarithmIsWithinTwoUlps) {
  std::mt19937 random(2);
  double worst = 0;
  for (int i = 0; i < 1000000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(1 + random() % 0x7F7FFFFF));
    if (x == 1.0f) continue;
    worst = std::max(worst, Ulps(Log(x), std::log(static_cast<double>(x))));
  }
  std::uniform_real_distribution<float> near_one(0.5f, 2.0f);
  for (int i = 0; i < 1000000; ++i) {
    const float x = near_one(random);
    if (x == 1.0f) continue;
    worst = std::max(worst, Ulps(Log(x), std::log(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(Log(1.0f), 0.0f);
}

TEST(DotChunk, FollowsTheContract) {
  EXPECT_EQ(DotChunk(64), 256);
  EXPECT_EQ(DotChunk(2048), 256);
  EXPECT_EQ(DotChunk(8960), 1792);
  EXPECT_EQ(DotChunk(4864), 1024);
}

// Known answers published with the generator (kat_vectors of Random123).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822u),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace ridge::kernels
