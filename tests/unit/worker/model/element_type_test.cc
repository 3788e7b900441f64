#include "worker/model/element_type.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/half.h"
#include "tests/unit/worker/model/file_builders.h"

namespace ridge::worker {
namespace {

using kernels::Half;

constexpr Half kOne = 0x3C00;       // 1.0
constexpr Half kHalf = 0x3800;      // 0.5
constexpr Half kMinusTwo = 0xC000;  // -2.0

std::vector<float> Dequantize(uint32_t type, const std::string& blocks) {
  const ElementType* format = FindGgmlType(type);
  const int64_t count = static_cast<int64_t>(blocks.size()) / format->block_bytes;
  std::vector<float> values(static_cast<size_t>(count * format->block_elements));
  format->dequantize(blocks.data(), count, values.data());
  return values;
}

TEST(ElementType, TableHoldsTheSupportedTypes) {
  std::string names;
  for (uint32_t id = 0; id < 64; ++id) {
    const ElementType* type = FindGgmlType(id);
    if (type == nullptr) continue;
    EXPECT_EQ(type->ggml_id, id);
    names += std::string(type->name) + " ";
  }
  EXPECT_EQ(names, "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K BF16 ");
  EXPECT_EQ(FindGgmlType(~0u), nullptr);
}

TEST(ElementType, PlainFloats) {
  EXPECT_EQ(Dequantize(0, BytesOf<float>({1.5f, -3.0f})), (std::vector<float>{1.5f, -3.0f}));
  EXPECT_EQ(Dequantize(1, BytesOf<Half>({kOne, kMinusTwo})), (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(Dequantize(30, BytesOf<uint16_t>({0x3F80, 0xC040})), (std::vector<float>{1.0f, -3.0f}));
}

TEST(ElementType, Q4_1IsScaleTimesNibblePlusMinimum) {
  // Byte i holds element i in its low and element i + 16 in its high half.
  std::string first = Bytes(kHalf) + Bytes(kMinusTwo);
  for (int i = 0; i < 16; ++i) first += static_cast<char>(i | (15 - i) << 4);
  const std::string second = Bytes(kOne) + Bytes(kOne) + std::string(16, '\x2F');
  const std::vector<float> values = Dequantize(3, first + second);
  ASSERT_EQ(values.size(), 64u);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * i - 2.0f);
    EXPECT_EQ(values[16 + i], 0.5f * (15 - i) - 2.0f);
    EXPECT_EQ(values[32 + i], 16.0f);
    EXPECT_EQ(values[48 + i], 3.0f);
  }
}

TEST(ElementType, Q8_0IsScaleTimesSignedByte) {
  std::string block = Bytes(kHalf);
  for (int i = 0; i < 32; ++i) block += static_cast<char>(static_cast<int8_t>(i * 8 - 128));
  const std::vector<float> values = Dequantize(8, block);
  ASSERT_EQ(values.size(), 32u);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(values[i], 0.5f * static_cast<float>(i * 8 - 128));
}

}  // namespace
}  // namespace ridge::worker
