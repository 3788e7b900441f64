// The matmul by sm_90a's copy engine gives the portable one's bits where blocks form tile after tile, in
// clusters of every shape and in either order of tiles.
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/packing.h"
#include "kernels/half.h"
#include "tests/gpu/device_buffer.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;

std::vector<Half> RandomHalves(size_t size, float scale, uint32_t seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<Half> values(size);
  for (Half& value : values) value = FloatToHalf(uniform(random));
  return values;
}

std::vector<float> RandomFloats(size_t size, uint32_t seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
  std::vector<float> values(size);
  for (float& value : values) value = uniform(random);
  return values;
}

struct Sizes {
  int m;
  int n;
  int k;
};

class ManyRowsTest : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (!HasWgmma()) GTEST_SKIP() << "this card takes the portable kernel";
    ASSERT_CUDA_OK(PrepareMatmul());
    const auto [m, n, k] = GetParam();
    x_ = DeviceBuffer<Half>(RandomHalves(static_cast<size_t>(m) * k, 1.0f, 1));
    w_ = DeviceBuffer<Half>(RandomHalves(static_cast<size_t>(PackedSize(n, k)), 0.3f, 2));
    args_.x = x_.data();
    args_.w = w_.data();
    args_.m = m;
    args_.n = n;
    args_.k = k;
    args_.y_stride = n;
    args_.saturations = saturations_.data();
  }

  // Both sizes of tiles in every cluster that divides them.
  static std::vector<MatmulPlan> WgmmaPlans() {
    const auto [m, n, k] = GetParam();
    std::vector<MatmulPlan> plans;
    for (const int32_t tokens : {64, 128}) {
      for (const int32_t cluster_rows : {1, 2}) {
        for (const int32_t cluster_tokens : {1, 2}) {
          if ((n + 127) / 128 % cluster_rows != 0 || (m + tokens - 1) / tokens % cluster_tokens != 0)
            continue;
          MatmulPlan plan = {MatmulKernel::kWgmma, tokens, 128, false, 0};
          plan.cluster_rows = cluster_rows;
          plan.cluster_tokens = cluster_tokens;
          plans.push_back(plan);
        }
      }
    }
    return plans;
  }
  static constexpr MatmulPlan kPortable = {MatmulKernel::kTiled, 128, 128, false, 0};

  MatmulArgs args_{};
  DeviceBuffer<Half> x_{0}, w_{0};
  DeviceBuffer<unsigned long long> saturations_{std::vector<unsigned long long>(1)};
};

TEST_P(ManyRowsTest, SumsWithBiasAndResidualHaveThePortableBits) {
  const auto [m, n, k] = GetParam();
  const std::vector<float> before = RandomFloats(static_cast<size_t>(m) * n, 3);
  const DeviceBuffer<float> bias(RandomFloats(static_cast<size_t>(n), 4));
  args_.bias = bias.data();
  args_.output = MatmulOutput::kResidual;
  const auto run = [&](const MatmulPlan& plan) {
    DeviceBuffer<float> y(before);
    args_.y = y.data();
    EXPECT_CUDA_OK(LaunchMatmul(plan, args_, nullptr));
    std::vector<uint32_t> bits;
    for (float value : y.Download()) bits.push_back(std::bit_cast<uint32_t>(value));
    return bits;
  };
  const std::vector<uint32_t> expected = run(kPortable);
  for (const MatmulPlan& plan : WgmmaPlans()) EXPECT_TRUE(run(plan) == expected) << plan.ToString();
}

TEST_P(ManyRowsTest, AClusterThatDoesNotDivideTheTilesIsRefused) {
  const auto [m, n, k] = GetParam();
  for (MatmulPlan plan : {MatmulPlan{MatmulKernel::kWgmma, 64, 128, false, 0},
                          MatmulPlan{MatmulKernel::kWgmma, 128, 128, false, 0}}) {
    plan.cluster_rows = (n + 127) / 128 % 2 == 0 ? 4 : 2;
    EXPECT_EQ(LaunchMatmul(plan, args_, nullptr), cudaErrorInvalidValue) << plan.ToString();
  }
}

TEST_P(ManyRowsTest, SwiGluHasThePortableBits) {
  const auto [m, n, k] = GetParam();
  args_.output = MatmulOutput::kSwiGlu;
  const auto run = [&](const MatmulPlan& plan) {
    DeviceBuffer<Half> gated(static_cast<size_t>(m) * n / 2);
    args_.gated = gated.data();
    EXPECT_CUDA_OK(LaunchMatmul(plan, args_, nullptr));
    return gated.Download();
  };
  const std::vector<Half> expected = run(kPortable);
  for (const MatmulPlan& plan : WgmmaPlans()) EXPECT_TRUE(run(plan) == expected) << plan.ToString();
}

// Row blocks and token blocks (of 128) that two divides or not; more rows of x than of W, and fewer.
INSTANTIATE_TEST_SUITE_P(Sizes, ManyRowsTest,
                         testing::Values(Sizes{8192, 1024, 272}, Sizes{8191, 1040, 80}, Sizes{2048, 8192, 80},
                                         Sizes{2177, 8304, 80}, Sizes{4096, 2176, 2064}),
                         [](const auto& test) {
                           return std::to_string(test.param.m) + "x" + std::to_string(test.param.n) + "x" +
                                  std::to_string(test.param.k);
                         });

}  // namespace
}  // namespace ridge::kernels::cuda
