#include "kernels/cpu/weight_ops.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/target.h"

namespace ridge::kernels::cpu {
namespace {

class WeightOpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TargetName().empty()) GTEST_SKIP() << "this machine cannot run the CPU kernels";
  }
};

// Numbers in an odd place of memory.
std::vector<char> Misaligned(const std::vector<uint16_t>& bits) {
  std::vector<char> bytes(2 * bits.size() + 1);
  std::memcpy(bytes.data() + 1, bits.data(), 2 * bits.size());
  return bytes;
}

constexpr int64_t kSize = 77;  // whole vectors and a rest, whatever the vector

TEST_F(WeightOpsTest, EveryHalfThatIsFiniteStaysAsItIs) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (int64_t at : {int64_t{3}, kSize - 1}) {
      std::vector<uint16_t> halves(kSize, 0x3C00), out(kSize);
      halves[at] = static_cast<uint16_t>(bits);
      const bool finite = (bits & 0x7C00) != 0x7C00;
      ASSERT_EQ(WeightsFromF16(Misaligned(halves).data() + 1, kSize, out.data()), finite) << bits;
      if (!finite) continue;
      ASSERT_EQ(out, halves) << bits;
    }
  }
}

TEST_F(WeightOpsTest, EveryBf16IsRoundedOrRefused) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    const bool fits = std::fabs(value) < 65520.0f;
    for (int64_t at : {int64_t{3}, kSize - 1}) {
      std::vector<uint16_t> numbers(kSize, 0x3F80), out(kSize);
      numbers[at] = static_cast<uint16_t>(bits);
      ASSERT_EQ(WeightsFromBf16(Misaligned(numbers).data() + 1, kSize, out.data()), fits) << value;
      if (!fits) continue;
      ASSERT_EQ(out[at], FloatToHalf(value)) << value;
      ASSERT_EQ(out[0], 0x3C00);
    }
  }
}

TEST_F(WeightOpsTest, FloatsAreRoundedToTheNearestOrRefused) {
  const std::vector<float> good = {0.0f,      -0.0f,      1.0f,  1.0f + 1.0f / 2048, 1.0f + 3.0f / 2048,
                                   65504.0f,  65519.996f, 1e-8f, 5.96e-8f,           -6.1e-5f,
                                   -65519.0f, 0.1f};
  const std::vector<float> bad = {65520.0f, -65520.0f, 1e30f, INFINITY, -INFINITY, NAN};
  for (int64_t at : {int64_t{3}, kSize - 1}) {
    std::vector<float> values(kSize, 2.0f);
    std::vector<uint16_t> out(kSize);
    for (float value : good) {
      values[at] = value;
      ASSERT_TRUE(WeightsFromF32(values.data(), kSize, out.data())) << value;
      ASSERT_EQ(out[at], FloatToHalf(value)) << value;
    }
    for (float value : bad) {
      values[at] = value;
      ASSERT_FALSE(WeightsFromF32(values.data(), kSize, out.data())) << value;
    }
  }
}

}  // namespace
}  // namespace ridge::kernels::cpu
