#include "worker/model/block_formats.h"

#include <cstring>

#include "kernels/half.h"

namespace ridge::worker {
namespace {

float LoadHalf(const uint8_t* data) {
  uint16_t bits;
  std::memcpy(&bits, data, sizeof(bits));
  return kernels::HalfToFloat(bits);
}

uint32_t LoadU32(const uint8_t* data) {
  uint32_t bits;
  std::memcpy(&bits, data, sizeof(bits));
  return bits;
}

const uint8_t* Bytes(const char* blocks) {
  return reinterpret_cast<const uint8_t*>(blocks);
}

// The 16 values of a 4-bit number.
struct Nibbles {
  float values[16];

  template <class Function>
  explicit Nibbles(Function value) {
    for (int q = 0; q < 16; ++q) values[q] = value(static_cast<float>(q));
  }

  // 16 bytes: element i is the low half of byte i, element i + 16 the high half.
  void Expand(const uint8_t* packed, float* out) const {
    for (int i = 0; i < 16; ++i) {
      out[i] = values[packed[i] & 15];
      out[i + 16] = values[packed[i] >> 4];
    }
  }
};

// Five bits of each of 32 elements: four as in Nibbles, the fifth is bit i of `high`.
float FiveBits(uint32_t high, const uint8_t* packed, int i) {
  const uint32_t low = i < 16 ? packed[i] & 15u : uint32_t{packed[i - 16]} >> 4;
  return static_cast<float>(low | (high >> i & 1) << 4);
}

// The scale and the minimum of each of the eight groups of Q4_K and Q5_K, six bits each. Groups 0 to 3: the
// low six bits of bytes 0 to 3 and 4 to 7. Groups 4 to 7: four bits in bytes 8 to 11 (scale low, minimum
// high), the upper two bits on top of the bytes of groups 0 to 3.
struct GroupScales {
  float scales[8];
  float minima[8];

  GroupScales(const uint8_t* packed, float d, float d_min) {
    for (int g = 0; g < 4; ++g) {
      const int scale = packed[g], minimum = packed[g + 4], rest = packed[g + 8];
      scales[g] = d * static_cast<float>(scale & 63);
      minima[g] = d_min * static_cast<float>(minimum & 63);
      scales[g + 4] = d * static_cast<float>((rest & 15) | (scale >> 6) << 4);
      minima[g + 4] = d_min * static_cast<float>(rest >> 4 | (minimum >> 6) << 4);
    }
  }
};

}  // namespace

// fp16 scale d, 16 bytes of 4-bit numbers. Value: d * (q - 8).
void DequantizeQ4_0(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 18, out += 32) {
    const float d = LoadHalf(Bytes(blocks));
    Nibbles([d](float q) { return d * (q - 8.0f); }).Expand(Bytes(blocks) + 2, out);
  }
}

// fp16 scale d, fp16 minimum m, 16 bytes of 4-bit numbers. Value: d * q + m.
void DequantizeQ4_1(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 20, out += 32) {
    const float d = LoadHalf(Bytes(blocks)), m = LoadHalf(Bytes(blocks) + 2);
    Nibbles([d, m](float q) { return d * q + m; }).Expand(Bytes(blocks) + 4, out);
  }
}

// fp16 scale d, 32 bits, 16 bytes: 5-bit numbers. Value: d * (q - 16).
void DequantizeQ5_0(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 22, out += 32) {
    const float d = LoadHalf(Bytes(blocks));
    const uint32_t high = LoadU32(Bytes(blocks) + 2);
    for (int i = 0; i < 32; ++i) out[i] = d * (FiveBits(high, Bytes(blocks) + 6, i) - 16.0f);
  }
}

// fp16 scale d, fp16 minimum m, 32 bits, 16 bytes: 5-bit numbers. Value: d * q + m.
void DequantizeQ5_1(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 24, out += 32) {
    const float d = LoadHalf(Bytes(blocks)), m = LoadHalf(Bytes(blocks) + 2);
    const uint32_t high = LoadU32(Bytes(blocks) + 4);
    for (int i = 0; i < 32; ++i) out[i] = d * FiveBits(high, Bytes(blocks) + 8, i) + m;
  }
}

// fp16 scale d, 32 signed bytes. Value: d * q.
void DequantizeQ8_0(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 34, out += 32) {
    const float d = LoadHalf(Bytes(blocks));
    const int8_t* q = reinterpret_cast<const int8_t*>(blocks + 2);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i]);
  }
}

// 16 bytes of scale (low half) and minimum (high half) of each group of 16, 64 bytes of 2-bit numbers, fp16
// d, fp16 dmin. Each 32 bytes hold 128 elements: element 32 s + i is bits 2 s and 2 s + 1 of byte i. Value:
// (d * scale) * q - dmin * minimum.
void DequantizeQ2_K(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 84, out += 256) {
    const uint8_t* groups = Bytes(blocks);
    const uint8_t* packed = groups + 16;
    const float d = LoadHalf(groups + 80), d_min = LoadHalf(groups + 82);
    for (int g = 0; g < 16; ++g) {
      const float scale = d * static_cast<float>(groups[g] & 15);
      const float minimum = d_min * static_cast<float>(groups[g] >> 4);
      const uint8_t* q = packed + g / 8 * 32 + g % 2 * 16;
      const int shift = g % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) out[16 * g + i] = scale * static_cast<float>(q[i] >> shift & 3) - minimum;
    }
  }
}

// 32 bytes of third bits, 64 bytes of 2-bit numbers as in Q2_K, 12 bytes with the groups' 6-bit scales, fp16
// d. Element 32 s + i has its third bit at bit s of byte i. Group g's scale has its low four bits in byte g %
// 8 (g < 8: the low half), its upper two at bits 2 (g / 4) of byte 8 + g % 4. Value: (d * (scale - 32)) * (q
// - 4 where the third bit is 0).
void DequantizeQ3_K(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 110, out += 256) {
    const uint8_t* third = Bytes(blocks);
    const uint8_t* packed = third + 32;
    const uint8_t* groups = third + 96;
    const float d = LoadHalf(third + 108);
    for (int g = 0; g < 16; ++g) {
      const int low = g < 8 ? groups[g] & 15 : groups[g - 8] >> 4;
      const int scale = low | (groups[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
      const float group_d = d * static_cast<float>(scale - 32);
      const uint8_t* q = packed + g / 8 * 32 + g % 2 * 16;
      const uint8_t* high = third + g % 2 * 16;
      const int shift = g % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) {
        const int value = (q[i] >> shift & 3) - (high[i] >> g / 2 & 1 ? 0 : 4);
        out[16 * g + i] = group_d * static_cast<float>(value);
      }
    }
  }
}

// fp16 d, fp16 dmin, 12 bytes of scales and minima, 128 bytes of 4-bit numbers: each 32 bytes hold two groups
// of 32, in the low and in the high halves. Value: (d * scale) * q - dmin * minimum.
void DequantizeQ4_K(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 144, out += 256) {
    const GroupScales groups(Bytes(blocks) + 4, LoadHalf(Bytes(blocks)), LoadHalf(Bytes(blocks) + 2));
    for (int g = 0; g < 8; ++g) {
      const uint8_t* packed = Bytes(blocks) + 16 + g / 2 * 32;
      const int shift = g % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        out[32 * g + i] = groups.scales[g] * static_cast<float>(packed[i] >> shift & 15) - groups.minima[g];
      }
    }
  }
}

// As Q4_K, with 32 bytes of fifth bits before the 4-bit numbers: bit g of byte i belongs to element 32 g + i.
void DequantizeQ5_K(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 176, out += 256) {
    const GroupScales groups(Bytes(blocks) + 4, LoadHalf(Bytes(blocks)), LoadHalf(Bytes(blocks) + 2));
    const uint8_t* fifth = Bytes(blocks) + 16;
    for (int g = 0; g < 8; ++g) {
      const uint8_t* packed = Bytes(blocks) + 48 + g / 2 * 32;
      const int shift = g % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int q = (packed[i] >> shift & 15) | (fifth[i] >> g & 1) << 4;
        out[32 * g + i] = groups.scales[g] * static_cast<float>(q) - groups.minima[g];
      }
    }
  }
}

// 128 bytes of low halves, 64 bytes of upper two bits, 16 signed scales of groups of 16, fp16 d. In each half
// of 128 elements, element 32 s + i has its low four bits in byte i + 32 (s % 2) (s < 2: the low half) and
// its upper two at bits 2 s of byte i. Value: (d * scale) * (q - 32).
void DequantizeQ6_K(const char* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 210, out += 256) {
    const int8_t* scales = reinterpret_cast<const int8_t*>(blocks + 192);
    const float d = LoadHalf(Bytes(blocks) + 208);
    for (int g = 0; g < 16; ++g) {
      const float group_d = d * static_cast<float>(scales[g]);
      const int s = g % 8 / 2;
      const uint8_t* low = Bytes(blocks) + g / 8 * 64 + s % 2 * 32 + g % 2 * 16;
      const uint8_t* high = Bytes(blocks) + 128 + g / 8 * 32 + g % 2 * 16;
      for (int i = 0; i < 16; ++i) {
        const int q = (low[i] >> (s < 2 ? 0 : 4) & 15) | (high[i] >> 2 * s & 3) << 4;
        out[16 * g + i] = group_d * static_cast<float>(q - 32);
      }
    }
  }
}

}  // namespace ridge::worker
