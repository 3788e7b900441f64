// The elementary functions of the numerics contract, as fixed sequences of IEEE operations: the same bits on
// every device that has a fused multiply-add. Each is within 2 ulp of the true value. Pure functions.
//
// The polynomials are Taylor's on a reduced range; RIDGE_HD lets a device compiler take them as they stand.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define RIDGE_HD __host__ __device__
#else
#define RIDGE_HD
#endif

namespace ridge::kernels {

inline constexpr float kLog2E = 1.44269504088896341f;
// ln 2 in two parts: the first has zeros at its end, so that n * kLn2High is exact for |n| < 2^9.
inline constexpr float kLn2High = 0.693145751953125f;
inline constexpr float kLn2Low = 1.42860682030941723e-6f;

// Coefficients of x .. x^7 of a polynomial whose constant is 1. They are values of a function, not constants
// of a namespace, so that device code can read them too.
struct Polynomial7 {
  float terms[7];
};

// ln(2)^i / i!
RIDGE_HD constexpr Polynomial7 Exp2Polynomial() {
  return {{0.693147180559945309f, 0.240226506959100712f, 0.0555041086648215800f, 0.00961812910762847716f,
           0.00133335581464284434f, 0.000154035303933816099f, 0.0000152527338040598403f}};
}

// 1 / i!
RIDGE_HD constexpr Polynomial7 ExpPolynomial() {
  return {{1.0f, 0.5f, 1.0f / 6.0f, 1.0f / 24.0f, 1.0f / 120.0f, 1.0f / 720.0f, 1.0f / 5040.0f}};
}

struct Polynomial4 {
  float terms[4];
};

// Of the lowest degree that is 2^r within 2^-18 for |r| <= 0.5, its largest relative error made least.
RIDGE_HD constexpr Polynomial4 Exp2ShortPolynomial() {
  return {{0.693124193f, 0.240240986f, 0.0559064304f, 0.00958285532f}};
}

// 2^n for an integral n in [-252, 254], applied in two exact steps so that subnormal results round once.
RIDGE_HD inline float ScaleByPowerOfTwo(float value, int32_t n) {
  const int32_t half = n >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((n - half + 127) << 23);
  return value * first * second;
}

RIDGE_HD inline float Evaluate(const Polynomial7& polynomial, float x) {
  float sum = polynomial.terms[6];
  for (int i = 5; i >= 0; --i) sum = std::fma(sum, x, polynomial.terms[i]);
  return std::fma(sum, x, 1.0f);
}

// 2^x; 0 far below the range (minus infinity too), infinity far above it.
RIDGE_HD inline float Exp2(float x) {
  x = std::fmin(std::fmax(x, -160.0f), 130.0f);
  const float n = std::nearbyint(x);
  return ScaleByPowerOfTwo(Evaluate(Exp2Polynomial(), x - n), static_cast<int32_t>(n));
}

// 2^x for x <= 0 (or a rounding error above), for a probability that is rounded to fp16: within 2^-18, and
// not below 2^-126, which fp16 rounds to 0.
RIDGE_HD inline float Exp2OfProbability(float x) {
  x = std::fmax(x, -126.0f);
  const float n = std::nearbyint(x);
  const Polynomial4 polynomial = Exp2ShortPolynomial();
  float sum = polynomial.terms[3];
  for (int i = 2; i >= 0; --i) sum = std::fma(sum, x - n, polynomial.terms[i]);
  return ScaleByPowerOfTwo(std::fma(sum, x - n, 1.0f), static_cast<int32_t>(n));
}

// e^x, with the same limits.
RIDGE_HD inline float Exp(float x) {
  x = std::fmin(std::fmax(x, -110.0f), 90.0f);
  const float n = std::nearbyint(x * kLog2E);
  const float rest = std::fma(-n, kLn2Low, std::fma(-n, kLn2High, x));
  return ScaleByPowerOfTwo(Evaluate(ExpPolynomial(), rest), static_cast<int32_t>(n));
}

// 2 atanh(s) for |s| <= 0.18, by its series.
RIDGE_HD inline float TwoAtanh(float s) {
  const float square = s * s;
  float sum = std::fma(square, 2.0f / 11.0f, 2.0f / 9.0f);
  sum = std::fma(sum, square, 2.0f / 7.0f);
  sum = std::fma(sum, square, 2.0f / 5.0f);
  sum = std::fma(sum, square, 2.0f / 3.0f);
  return std::fma(sum * square, s, 2.0f * s);
}

// ln x for finite x > 0.
RIDGE_HD inline float Log(float x) {
  int32_t exponent = 0;
  if (x < 0x1p-126f) {
    x *= 0x1p23f;
    exponent = -23;
  }
  // x = m * 2^exponent with m in [sqrt(1/2), sqrt(2)).
  const int32_t shifted = std::bit_cast<int32_t>(x) - 0x3F3504F3;
  exponent += shifted >> 23;
  const float m = std::bit_cast<float>((shifted & 0x007FFFFF) + 0x3F3504F3);
  const float log_m = TwoAtanh((m - 1.0f) / (m + 1.0f));
  const float e = static_cast<float>(exponent);
  return std::fma(e, kLn2High, std::fma(e, kLn2Low, log_m));
}

// 1 / sqrt(x) by two correctly rounded operations.
RIDGE_HD inline float Rsqrt(float x) {
  return 1.0f / std::sqrt(x);
}

}  // namespace ridge::kernels
