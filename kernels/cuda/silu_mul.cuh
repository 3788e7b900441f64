// SwiGLU's gate as device functions: the standalone kernel and the matmuls' epilogues share them.
#pragma once

#include "kernels/math.h"

namespace ridge::kernels::cuda {

// SiLU(gate) * up before rounding: gate / (1 + e^-gate) * up.
__device__ inline float SiluMul(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, Exp(-gate))), up);
}

// kCount of them together, with the same bits. A division has a branch for operands near the ends of the
// range, and an exponential needs none of its conversions there either: so all are formed as if none were
// there, side by side, and all again where one was.
template <int kCount>
__device__ inline void SiluMulAll(const float (&gates)[kCount], const float (&ups)[kCount],
                                  float (&out)[kCount]) {
  // Bounds within which the short way is exact: quotients and their remainders are normal.
  constexpr float kSmallest = 0x1p-40f, kLargest = 0x1p60f, kLeast = -40.0f;
  // A float to which this has been added is an integer in its last bits, rounded to nearest even.
  constexpr float kRound = 12582912.0f;
  // e^-80 is nothing beside 1.
  constexpr float kEnough = -80.0f;
  float smallest = kLargest, largest = 0.0f, least = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    smallest = fminf(smallest, fabsf(gates[i]));
    largest = fmaxf(largest, fabsf(gates[i]));
    least = fminf(least, gates[i]);
    const float x = fmaxf(-gates[i], kEnough);
    const float rounded = __fadd_rn(__fmul_rn(x, kLog2E), kRound);
    const float n = __fadd_rn(rounded, -kRound);
    const float rest = __fmaf_rn(-n, kLn2Low, __fmaf_rn(-n, kLn2High, x));
    const uint32_t power =
        __float_as_uint(Evaluate(ExpPolynomial(), rest)) + (__float_as_uint(rounded) << 23);
    const float divisor = __fadd_rn(1.0f, __uint_as_float(power));
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
    inverse = __fmaf_rn(inverse, __fmaf_rn(-divisor, inverse, 1.0f), inverse);
    const float quotient = __fmul_rn(gates[i], inverse);
    out[i] = __fmul_rn(__fmaf_rn(inverse, __fmaf_rn(-divisor, quotient, gates[i]), quotient), ups[i]);
  }
  if (smallest >= kSmallest && largest < kLargest && least >= kLeast) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] = SiluMul(gates[i], ups[i]);
}

}  // namespace ridge::kernels::cuda
