// fp16 as its bits, and the exact scalar conversions. Pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ridge::kernels {

using Half = uint16_t;

inline constexpr float kHalfMax = 65504.0f;

// Exact.
inline float HalfToFloat(Half half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1F;
  const uint32_t mantissa = half & 0x3FF;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// To the nearest, ties to even; beyond the largest finite value infinity, as IEEE 754 says.
inline Half FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const Half sign = static_cast<Half>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00;  // 65520 and above
  if (magnitude < 0x38800000u) {                       // below the smallest normal half, 2^-14
    // Adding 2^-1 puts the result's unit, 2^-24, at the last place of the sum.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<Half>(std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1);
  return sign | static_cast<Half>(rounded >> 13);
}

// What an activation becomes when it is stored as fp16: saturates at +-65504 and counts how often it had to.
inline float RoundToHalf(float value, int64_t* saturations) {
  if (std::fabs(value) > kHalfMax) {
    ++*saturations;
    value = std::copysign(kHalfMax, value);
  }
  return HalfToFloat(FloatToHalf(value));
}

}  // namespace ridge::kernels
