// SwiGLU's gate as a device function: the standalone kernel and the matmul's epilogue share it.
#pragma once

#include "kernels/math.h"

namespace ridge::kernels::cuda {

// SiLU(gate) * up before rounding: gate / (1 + e^-gate) * up.
__device__ inline float SiluMul(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, Exp(-gate))), up);
}

}  // namespace ridge::kernels::cuda
