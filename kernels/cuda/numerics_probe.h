// The card's own arithmetic in a few numbers: chains of mma.m16n8k16 over fixed inputs. Cards that give other
// bits here give other bits everywhere; the result is part of the numerics id.
#pragma once

#include <cuda_runtime_api.h>

namespace ridge::kernels::cuda {

inline constexpr int kProbeChains = 8;
inline constexpr int kProbeOutputs = kProbeChains * 16 * 8;

// Writes kProbeOutputs finite floats to device memory.
[[nodiscard]] cudaError_t LaunchNumericsProbe(float* out, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
