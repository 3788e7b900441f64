#include "kernels/rope_table.h"

#include <cmath>

#include "gtest/gtest.h"

namespace ridge::kernels {
namespace {

constexpr Llama3RopeScaling kLlama32 = {
    .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};

TEST(RopeTable, AnglesArePositionsTimesFrequenciesOverDivisors) {
  const RopeTable plain = MakeRopeTable(10000.0, 4, {}, 6);
  const RopeTable scaled = MakeRopeTable(10000.0, 4, {1.0, 8.0}, 6);
  ASSERT_EQ(plain.cosines.size(), 12u);
  EXPECT_EQ(plain.cosines[5 * 2], static_cast<float>(std::cos(5.0)));
  EXPECT_EQ(plain.sines[5 * 2 + 1], static_cast<float>(std::sin(0.05)));
  EXPECT_EQ(scaled.cosines[5 * 2], plain.cosines[5 * 2]);
  EXPECT_EQ(scaled.sines[5 * 2 + 1], static_cast<float>(std::sin(0.05 / 8)));
}

// Llama 3.2 1B: theta 500,000, 64 dimensions. Wave i is 2 pi 500000^(i / 32) positions long: those below
// 2,048 (i <= 14) stay, those above 8,192 (i >= 18) are stretched.
TEST(RopeTable, Llama3StretchesLongWavesOnly) {
  const std::vector<double> divisors = Llama3RopeDivisors(500000.0, 64, kLlama32);
  ASSERT_EQ(divisors.size(), 32u);
  for (size_t i = 0; i < 32; ++i) {
    if (i <= 14) {
      EXPECT_EQ(divisors[i], 1.0) << i;
    } else if (i >= 18) {
      EXPECT_EQ(divisors[i], 32.0) << i;
    } else {
      EXPECT_GT(divisors[i], divisors[i - 1]) << i;
      EXPECT_LT(divisors[i], 32.0) << i;
    }
  }
  // By hand for i = 16: a wave of 2 pi sqrt(500000) = 4442.88 positions, 1.843848 in 8,192, of which
  // (1.843848 - 1) / 3 = 0.281283 is kept.
  EXPECT_NEAR(divisors[16], 1.0 / ((1 - 0.281283) / 32 + 0.281283), 1e-5);
}

}  // namespace
}  // namespace ridge::kernels
