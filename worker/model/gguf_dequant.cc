#include "worker/model/gguf_dequant.h"

#include <cstring>

#include "kernels/half.h"

namespace ridge::worker {
namespace {

float LoadHalf(const char* data) {
  uint16_t bits;
  std::memcpy(&bits, data, sizeof(bits));
  return kernels::HalfToFloat(bits);
}

void DequantizeF32(const char* blocks, int64_t num_blocks, float* out) {
  std::memcpy(out, blocks, static_cast<size_t>(num_blocks) * sizeof(float));
}

void DequantizeF16(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t i = 0; i < num_blocks; ++i) out[i] = LoadHalf(blocks + 2 * i);
}

// 32 elements: fp16 scale d, fp16 minimum m, 16 bytes of two 4-bit numbers; element i is the low half of byte
// i, element i + 16 the high half. Value: q * d + m.
void DequantizeQ4_1(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 20, out += 32) {
    const float d = LoadHalf(blocks);
    const float m = LoadHalf(blocks + 2);
    float values[16];
    for (int q = 0; q < 16; ++q) values[q] = static_cast<float>(q) * d + m;
    const uint8_t* packed = reinterpret_cast<const uint8_t*>(blocks + 4);
    for (int i = 0; i < 16; ++i) {
      out[i] = values[packed[i] & 15];
      out[i + 16] = values[packed[i] >> 4];
    }
  }
}

// 32 elements: fp16 scale d, 32 signed bytes. Value: q * d.
void DequantizeQ8_0(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 34, out += 32) {
    const float d = LoadHalf(blocks);
    const int8_t* q = reinterpret_cast<const int8_t*>(blocks + 2);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(q[i]) * d;
  }
}

constexpr GgmlType kTypes[] = {
    {kGgmlF32, "F32", 1, 4, DequantizeF32},
    {kGgmlF16, "F16", 1, 2, DequantizeF16},
    {kGgmlQ4_1, "Q4_1", 32, 20, DequantizeQ4_1},
    {kGgmlQ8_0, "Q8_0", 32, 34, DequantizeQ8_0},
};

}  // namespace

const GgmlType* FindGgmlType(uint32_t id) {
  for (const GgmlType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

}  // namespace ridge::worker
