#include "worker/model/gguf_dequant.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/file_builders.h"
#include "worker/model/half_rows.h"

namespace ridge::worker {
namespace {

constexpr Half kOne = 0x3C00;       // 1.0
constexpr Half kHalf = 0x3800;      // 0.5
constexpr Half kMinusTwo = 0xC000;  // -2.0

std::vector<float> Dequantize(uint32_t type, const std::string& blocks) {
  const GgmlType* format = FindGgmlType(type);
  const int64_t count = static_cast<int64_t>(blocks.size()) / format->block_bytes;
  std::vector<float> values(static_cast<size_t>(count * format->block_elements));
  format->dequantize(blocks.data(), count, values.data());
  return values;
}

TEST(GgufDequant, TableHoldsTheSupportedTypes) {
  for (uint32_t id : {kGgmlF32, kGgmlF16, kGgmlQ4_1, kGgmlQ8_0}) {
    ASSERT_NE(FindGgmlType(id), nullptr);
    EXPECT_EQ(FindGgmlType(id)->id, id);
  }
  EXPECT_EQ(FindGgmlType(4), nullptr);
  EXPECT_EQ(FindGgmlType(~0u), nullptr);
}

TEST(GgufDequant, PlainFloats) {
  EXPECT_EQ(Dequantize(kGgmlF32, BytesOf<float>({1.5f, -3.0f})), (std::vector<float>{1.5f, -3.0f}));
  EXPECT_EQ(Dequantize(kGgmlF16, BytesOf<Half>({kOne, kMinusTwo})), (std::vector<float>{1.0f, -2.0f}));
}

TEST(GgufDequant, Q4_1IsScaleTimesNibblePlusMinimum) {
  // Byte i holds element i in its low and element i + 16 in its high half.
  std::string first = Bytes(kHalf) + Bytes(kMinusTwo);
  for (int i = 0; i < 16; ++i) first += static_cast<char>(i | (15 - i) << 4);
  const std::string second = Bytes(kOne) + Bytes(kOne) + std::string(16, '\x2F');
  const std::vector<float> values = Dequantize(kGgmlQ4_1, first + second);
  ASSERT_EQ(values.size(), 64u);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * i - 2.0f);
    EXPECT_EQ(values[16 + i], 0.5f * (15 - i) - 2.0f);
    EXPECT_EQ(values[32 + i], 16.0f);
    EXPECT_EQ(values[48 + i], 3.0f);
  }
}

TEST(GgufDequant, Q8_0IsScaleTimesSignedByte) {
  std::string block = Bytes(kHalf);
  for (int i = 0; i < 32; ++i) block += static_cast<char>(static_cast<int8_t>(i * 8 - 128));
  const std::vector<float> values = Dequantize(kGgmlQ8_0, block);
  ASSERT_EQ(values.size(), 32u);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(values[i], 0.5f * static_cast<float>(i * 8 - 128));
}

TEST(HalfRows, RoundsToNearestEvenAndFindsOverflow) {
  std::vector<Half> out(4);
  EXPECT_EQ(ConvertToHalf({1.0f, -2.0f, 1.0f + 1.0f / 2048, 65519.0f}, absl::MakeSpan(out)), -1);
  EXPECT_EQ(out, (std::vector<Half>{kOne, kMinusTwo, kOne, 0x7BFF}));
  EXPECT_EQ(ConvertToHalf({1.0f, 2.0f, 65520.0f, 0.0f}, absl::MakeSpan(out)), 2);
  EXPECT_EQ(ConvertToHalf({1.0f, -1e9f, 65520.0f, 0.0f}, absl::MakeSpan(out)), 1);
  EXPECT_EQ(ConvertToHalf({NAN, 0.0f, 0.0f, 0.0f}, absl::MakeSpan(out)), 0);
  EXPECT_EQ(ConvertToHalf({0.0f, 0.0f, 0.0f, INFINITY}, absl::MakeSpan(out)), 3);
}

TEST(HalfRows, FindsWhatIsNotFinite) {
  EXPECT_EQ(FindNotFinite({kOne, 0x7BFF, 0xFBFF, 0x0001}), -1);
  EXPECT_EQ(FindNotFinite({kOne, 0xFC00}), 1);
  EXPECT_EQ(FindNotFinite({0x7E01}), 0);
}

TEST(HalfRows, ExpandsBf16) {
  std::vector<float> out(3);
  ExpandBf16(BytesOf<uint16_t>({0x3F80, 0xC040, 0x0000}).data(), absl::MakeSpan(out));
  EXPECT_EQ(out, (std::vector<float>{1.0f, -3.0f, 0.0f}));
}

}  // namespace
}  // namespace ridge::worker
