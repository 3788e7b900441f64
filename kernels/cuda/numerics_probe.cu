// Geometry: a warp a chain of 64 steps. Inputs are hashes of their place: in chain c the exponents of fp16
// spread over 2 + 3 c binades around 1, so that sums meet alignment, truncation and rounding in every way.
#include "kernels/cuda/numerics_probe.h"

#include "kernels/cuda/mma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kSteps = 64;

__device__ uint32_t Hash(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Two fp16 numbers, finite.
__device__ uint32_t Pair(uint32_t place, uint32_t binades) {
  uint32_t pair = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t bits = Hash(2 * place + i);
    const uint32_t exponent = 15 - binades / 2 + (bits >> 16) % binades;
    pair |= ((bits & 0x83FF) | exponent << 10) << (16 * i);
  }
  return pair;
}

__global__ void NumericsProbeKernel(float* out) {
  const uint32_t lane = threadIdx.x, chain = blockIdx.x, binades = 2 + 3 * chain;
  FragmentC c{};
  for (uint32_t step = 0; step < kSteps; ++step) {
    const uint32_t place = ((chain * kSteps + step) * kWarpThreads + lane) * 8;
    FragmentA a;
    FragmentB b;
    for (uint32_t i = 0; i < 4; ++i) a.x[i] = Pair(place + i, binades);
    for (uint32_t i = 0; i < 2; ++i) b.x[i] = Pair(place + 4 + i, binades);
    Mma(c, a, b);
  }
  for (uint32_t i = 0; i < 4; ++i) out[(chain * kWarpThreads + lane) * 4 + i] = c.x[i];
}

}  // namespace

cudaError_t LaunchNumericsProbe(float* out, cudaStream_t stream) {
  static_assert(kProbeOutputs == kProbeChains * kWarpThreads * 4);
  NumericsProbeKernel<<<kProbeChains, kWarpThreads, 0, stream>>>(out);
  return cudaGetLastError();
}

}  // namespace ridge::kernels::cuda
