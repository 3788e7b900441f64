// The facts behind the numerics contract: a chain of m16n8k16 steps over K gives the same bits with the
// operands swapped and by wgmma for every N, with A from registers and from shared memory, on benign and on
// hostile numbers.
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numerics_probe.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/half.h"
#include "tests/gpu/device_buffer.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;

constexpr int kRows = 64;     // of W
constexpr int kTokens = 256;  // of X

__device__ uint32_t PairAt(const Half* matrix, int row, int column, int k) {
  return *reinterpret_cast<const uint32_t*>(matrix + static_cast<int64_t>(row) * k + column);
}

__device__ FragmentA LoadA(const Half* matrix, int row, int column, int k, int lane) {
  const int g = lane / 4, t = lane % 4 * 2;
  return {{PairAt(matrix, row + g, column + t, k), PairAt(matrix, row + g + 8, column + t, k),
           PairAt(matrix, row + g, column + t + 8, k), PairAt(matrix, row + g + 8, column + t + 8, k)}};
}

__device__ FragmentB LoadB(const Half* matrix, int row, int column, int k, int lane) {
  const int g = lane / 4, t = lane % 4 * 2;
  return {{PairAt(matrix, row + g, column + t, k), PairAt(matrix, row + g, column + t + 8, k)}};
}

// out[row of W][token]. Blocks of one warp: 16 rows x 8 tokens, W as A.
__global__ void WeightsAsA(const Half* w, const Half* x, int k, float* out) {
  const int lane = threadIdx.x, row = blockIdx.x * 16, token = blockIdx.y * 8;
  FragmentC c{};
  for (int step = 0; step < k; step += 16)
    Mma(c, LoadA(w, row, step, k, lane), LoadB(x, token, step, k, lane));
  for (int i = 0; i < 4; ++i) {
    out[(row + lane / 4 + i / 2 * 8) * kTokens + token + lane % 4 * 2 + i % 2] = c.x[i];
  }
}

// Blocks of one warp: 8 rows x 16 tokens, X as A.
__global__ void TokensAsA(const Half* w, const Half* x, int k, float* out) {
  const int lane = threadIdx.x, row = blockIdx.x * 8, token = blockIdx.y * 16;
  FragmentC c{};
  for (int step = 0; step < k; step += 16)
    Mma(c, LoadA(x, token, step, k, lane), LoadB(w, row, step, k, lane));
  for (int i = 0; i < 4; ++i) {
    out[(row + lane % 4 * 2 + i % 2) * kTokens + token + lane / 4 + i / 2 * 8] = c.x[i];
  }
}

// A block of one warpgroup: 64 rows x kN tokens.
template <int kN, bool kShared>
__global__ void ByWgmma(const Half* w, const Half* x, int k, float* out) {
#if RIDGE_HAS_WGMMA
  __shared__ __align__(128) Half w_tile[kRows * 16];
  __shared__ __align__(128) Half x_tile[kN * 16];
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads, token = blockIdx.x * kN;
  float c[kN / 2] = {};
  for (int step = 0; step < k; step += 16) {
    // Core matrices: 8 rows x 8 columns, the two of a row group beside each other.
    const auto place = [](int row, int column) {
      return row / 8 * 128 + column / 8 * 64 + row % 8 * 8 + column % 8;
    };
    for (int i = threadIdx.x; i < kRows * 16; i += blockDim.x)
      w_tile[place(i / 16, i % 16)] = w[i / 16 * k + step + i % 16];
    for (int i = threadIdx.x; i < kN * 16; i += blockDim.x) {
      x_tile[place(i / 16, i % 16)] = x[(token + i / 16) * k + step + i % 16];
    }
    FenceSharedForWgmma();
    __syncthreads();
    const uint64_t b = SharedOperand(SharedAddress(x_tile), 128, 256);
    WgmmaFence();
    if constexpr (kShared) {
      Wgmma(c, SharedOperand(SharedAddress(w_tile), 128, 256), b);
    } else {
      Wgmma(c, LoadA(w, warp * 16, step, k, lane), b);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    __syncthreads();
  }
  for (int i = 0; i < kN / 2; ++i) {
    out[(warp * 16 + lane / 4 + i % 4 / 2 * 8) * kTokens + token + i / 4 * 8 + lane % 4 * 2 + i % 2] = c[i];
  }
#endif
}

using Matrix = std::vector<Half>;

enum class Data { kNormal, kThirtyBinades, kSubnormals, kOneSided, kMixed, kCancelling };

Matrix MakeMatrix(Data data, int rows, int k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  Matrix matrix(static_cast<size_t>(rows) * static_cast<size_t>(k));
  for (size_t i = 0; i < matrix.size(); ++i) {
    float value = normal(random);
    switch (data) {
      case Data::kNormal:
        break;
      case Data::kThirtyBinades:
        value = std::ldexp(value, static_cast<int>(random() % 30) - 22);
        break;
      case Data::kSubnormals:
        value *= 0x1p-17f;
        break;
      case Data::kOneSided:
        value = 100.0f + 50.0f * uniform(random);
        break;
      case Data::kMixed:
        value *= random() % 16 == 0 ? 500.0f : 0.01f;
        break;
      case Data::kCancelling:
        // Large products that take each other away (every second matrix has one sign), with small ones
        // between them.
        if (i % 4 == 0) value = 200.0f;
        if (i % 4 == 2) value = seed % 2 == 0 ? 200.0f : -200.0f;
        break;
    }
    matrix[i] = FloatToHalf(std::fmin(std::fmax(value, -kHalfMax), kHalfMax));
  }
  return matrix;
}

std::vector<uint32_t> Bits(const DeviceBuffer<float>& buffer) {
  std::vector<uint32_t> bits;
  for (float value : buffer.Download()) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

bool HasWgmma() {
  cudaFuncAttributes attributes{};
  DeviceInfo info;
  return cudaFuncGetAttributes(&attributes, ByWgmma<8, false>) == cudaSuccess &&
         GetDeviceInfo(&info) == cudaSuccess && info.capability == 90 && attributes.ptxVersion == 90;
}

class Chains : public testing::TestWithParam<Data> {
 protected:
  template <typename Launch>
  void ExpectSame(const std::string& name, const std::vector<uint32_t>& expected, Launch launch) {
    DeviceBuffer<float> out(kRows * kTokens);
    launch(out.data());
    ASSERT_CUDA_OK(cudaGetLastError());
    const std::vector<uint32_t> bits = Bits(out);
    size_t different = 0;
    for (size_t i = 0; i < bits.size(); ++i) different += bits[i] != expected[i] ? 1 : 0;
    EXPECT_EQ(different, 0u) << name << " of " << bits.size() << " outputs";
  }

  template <int kN>
  void ExpectWgmmaSame(const DeviceBuffer<Half>& w, const DeviceBuffer<Half>& x, int k,
                       const std::vector<uint32_t>& expected) {
    const std::string name = "wgmma n" + std::to_string(kN);
    ExpectSame(name + ", A in registers", expected,
               [&](float* out) { ByWgmma<kN, false><<<kTokens / kN, 128>>>(w.data(), x.data(), k, out); });
    ExpectSame(name + ", A in shared memory", expected,
               [&](float* out) { ByWgmma<kN, true><<<kTokens / kN, 128>>>(w.data(), x.data(), k, out); });
  }
};

TEST_P(Chains, GiveTheSameBitsByEveryInstruction) {
  uint32_t seed = 1;
  for (int k : {16, 256, 1536, 1792, 8960}) {
    SCOPED_TRACE("K " + std::to_string(k));
    const DeviceBuffer<Half> w(MakeMatrix(GetParam(), kRows, k, seed++)),
        x(MakeMatrix(GetParam(), kTokens, k, seed++));
    DeviceBuffer<float> out(kRows * kTokens);
    WeightsAsA<<<dim3(kRows / 16, kTokens / 8), 32>>>(w.data(), x.data(), k, out.data());
    const std::vector<uint32_t> expected = Bits(out);
    EXPECT_GT(std::set<uint32_t>(expected.begin(), expected.end()).size(), expected.size() / 64);
    ExpectSame("swapped", expected, [&](float* to) {
      TokensAsA<<<dim3(kRows / 8, kTokens / 16), 32>>>(w.data(), x.data(), k, to);
    });
    if (!HasWgmma()) continue;
    ExpectWgmmaSame<8>(w, x, k, expected);
    ExpectWgmmaSame<32>(w, x, k, expected);
    ExpectWgmmaSame<64>(w, x, k, expected);
    ExpectWgmmaSame<128>(w, x, k, expected);
    ExpectWgmmaSame<256>(w, x, k, expected);
  }
}

std::string DataName(const testing::TestParamInfo<Data>& test) {
  const char* names[] = {"Normal", "ThirtyBinades", "Subnormals", "OneSided", "Mixed", "Cancelling"};
  return names[static_cast<int>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Data, Chains,
                         testing::Values(Data::kNormal, Data::kThirtyBinades, Data::kSubnormals,
                                         Data::kOneSided, Data::kMixed, Data::kCancelling),
                         DataName);

TEST(NumericsProbe, GivesTheSameFiniteBitsEveryTime) {
  DeviceBuffer<float> first(kProbeOutputs), second(kProbeOutputs);
  ASSERT_CUDA_OK(LaunchNumericsProbe(first.data(), nullptr));
  ASSERT_CUDA_OK(LaunchNumericsProbe(second.data(), nullptr));
  EXPECT_EQ(Bits(first), Bits(second));
  std::set<float> distinct;
  for (float value : first.Download()) {
    EXPECT_TRUE(std::isfinite(value));
    distinct.insert(value);
  }
  EXPECT_GT(distinct.size(), size_t{kProbeOutputs} * 9 / 10);
}

}  // namespace
}  // namespace ridge::kernels::cuda
