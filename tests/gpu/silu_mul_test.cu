// SwiGLU's gate for every float there is.
#include <gtest/gtest.h>

#include "kernels/cuda/silu_mul.cuh"
#include "tests/gpu/device_buffer.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;

constexpr int kTogether = 8;

__global__ void CountDifferences(unsigned long long* differences) {
  const uint32_t begin = (blockIdx.x * blockDim.x + threadIdx.x) * kTogether;
  float gates[kTogether], ups[kTogether], together[kTogether];
  for (int i = 0; i < kTogether; ++i) {
    gates[i] = __uint_as_float(begin + i);
    ups[i] = 1.0f + static_cast<float>(i);
  }
  SiluMulAll(gates, ups, together);
  for (int i = 0; i < kTogether; ++i) {
    const float alone = SiluMul(gates[i], ups[i]);
    const bool same =
        __float_as_uint(alone) == __float_as_uint(together[i]) || (isnan(alone) && isnan(together[i]));
    if (!same) atomicAdd(differences, 1ull);
  }
}

TEST(SiluMul, TogetherIsTheSameAsAloneForEveryGate) {
  DeviceBuffer<unsigned long long> differences(std::vector<unsigned long long>(1));
  constexpr unsigned kThreads = 256;
  CountDifferences<<<static_cast<unsigned>((uint64_t{1} << 32) / kTogether / kThreads), kThreads>>>(
      differences.data());
  EXPECT_EQ(differences.Download()[0], 0u);
}

}  // namespace
}  // namespace ridge::kernels::cuda
