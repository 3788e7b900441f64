// What is behind attention by one kernel: the bits of the kernels of norms and matmuls.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mlp.h"
#include "kernels/cuda/packing.h"
#include "kernels/half.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/random_floats.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;
using gpu_test::RandomFloats;

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// Made-up weights of about 1 / sqrt(k), in the order of the packed matrix.
DeviceBuffer<Half> Weights(int32_t n, int32_t k, uint64_t key) {
  DeviceBuffer<Half> packed(static_cast<size_t>(PackedSize(n, k)));
  const float scale = 1.7f / std::sqrt(static_cast<float>(k)) / 32768.0f;
  EXPECT_CUDA_OK(
      LaunchPackSynthetic({key, scale, 0, 16}, n, {packed.data(), k, 0, RowPlacement::kPlain}, nullptr));
  return packed;
}

class MlpTest : public testing::TestWithParam<MlpShape> {
 protected:
  void SetUp() override {
    DeviceInfo info;
    ASSERT_CUDA_OK(GetDeviceInfo(&info));
    device_ = {info.num_sms, static_cast<int32_t>(info.shared_bytes_per_block), HasWgmma()};
    ASSERT_CUDA_OK(PrepareMatmul());
    ASSERT_CUDA_OK(PrepareMlp());
  }

  // What a layer leaves.
  struct Result {
    std::vector<float> residual, sums;
    std::vector<Half> normed, gated;
    unsigned long long saturations;
  };

  MlpArgs Args(int32_t m) {
    const MlpShape shape = GetParam();
    MlpArgs args{};
    args.norm = {residual_->data(), nullptr, norm_weight_->data(), normed_->data(), m,
                 shape.hidden,      1e-6f,   saturations_->data()};
    args.norm.partials = workspace_->data();
    args.norm.num_partials = NumChunks(shape.attention);
    args.norm.partial_rows = m;
    args.norm.y = residual_->data();
    args.project.x = attention_->data();
    args.project.w = project_->data();
    args.project.m = m;
    args.project.n = shape.hidden;
    args.project.k = shape.attention;
    args.project.output = MatmulOutput::kPartials;
    args.project.workspace = workspace_->data();
    args.gate_up.x = normed_->data();
    args.gate_up.w = gate_up_->data();
    args.gate_up.gated = gated_->data();
    args.gate_up.m = m;
    args.gate_up.n = 2 * shape.mlp;
    args.gate_up.k = shape.hidden;
    args.gate_up.output = MatmulOutput::kSwiGlu;
    args.gate_up.saturations = saturations_->data();
    args.down.x = gated_->data();
    args.down.w = down_->data();
    args.down.m = m;
    args.down.n = shape.hidden;
    args.down.k = shape.mlp;
    args.down.output = MatmulOutput::kPartials;
    args.down.workspace = workspace_->data();
    args.counters = counters_->data();
    return args;
  }

  void Reset(int32_t m) {
    const MlpShape shape = GetParam();
    const size_t values = static_cast<size_t>(m) * shape.hidden;
    residual_.emplace(RandomFloats(values, 2.0f, 1));
    workspace_.emplace(values * kMaxNormPartials);  // room for either matmul's chunks
    std::vector<Half> attention;
    for (float value : RandomFloats(static_cast<size_t>(m) * shape.attention, 1.0f, 2))
      attention.push_back(FloatToHalf(value));
    attention_.emplace(attention);
    normed_.emplace(values);
    gated_.emplace(static_cast<size_t>(m) * shape.mlp);
    saturations_.emplace(std::vector<unsigned long long>{0});
  }

  Result Take(int32_t m) {
    const size_t sums = static_cast<size_t>(m) * GetParam().hidden * NumChunks(GetParam().mlp);
    std::vector<float> workspace = workspace_->Download();
    workspace.resize(sums);
    return {residual_->Download(), workspace, normed_->Download(), gated_->Download(),
            saturations_->Download()[0]};
  }

  void Project(const MlpArgs& args) {
    const MatmulPlan plan =
        PlanMatmul(args.project.m, args.project.n, args.project.k, device_, MatmulOutput::kPartials);
    EXPECT_TRUE(TakesPartials(plan));
    EXPECT_CUDA_OK(LaunchMatmul(plan, args.project, nullptr));
  }

  void LaunchOneKernel(int32_t m) {
    const MlpPlan plan = PlanMlp(m, GetParam(), device_);
    const MlpArgs args = Args(m);
    if (plan.project_units == 0) Project(args);
    EXPECT_CUDA_OK(LaunchMlp(plan, args, nullptr));
  }

  Result ByKernelsOfTheirOwn(int32_t m) {
    Reset(m);
    MlpArgs args = Args(m);
    // Where gate/up has few tiles its chunks are split.
    const DeviceBuffer<float> workspace(size_t{8} * 64 * args.gate_up.n);
    const DeviceBuffer<int32_t> counters(std::vector<int32_t>(static_cast<size_t>(args.gate_up.n), 0));
    args.gate_up.workspace = workspace.data();
    args.gate_up.counters = counters.data();
    Project(args);
    EXPECT_CUDA_OK(LaunchRmsNorm(args.norm, nullptr));
    const MatmulPlan gate_up = PlanMatmul(m, args.gate_up.n, args.gate_up.k, device_, MatmulOutput::kSwiGlu);
    EXPECT_CUDA_OK(LaunchMatmul(gate_up, args.gate_up, nullptr));
    const MatmulPlan down = PlanMatmul(m, args.down.n, args.down.k, device_, MatmulOutput::kPartials);
    EXPECT_TRUE(TakesPartials(down));
    EXPECT_CUDA_OK(LaunchMatmul(down, args.down, nullptr));
    return Take(m);
  }

  void Expect(const Result& expected, const Result& result, int32_t m) {
    EXPECT_EQ(expected.normed, result.normed) << m;
    EXPECT_EQ(expected.gated, result.gated) << m;
    EXPECT_EQ(Bits(expected.sums), Bits(result.sums)) << m;
    EXPECT_EQ(Bits(expected.residual), Bits(result.residual)) << m;
    EXPECT_EQ(expected.saturations, result.saturations) << m;
  }

  void MakeWeights(float norm_scale) {
    const MlpShape shape = GetParam();
    project_.emplace(Weights(shape.hidden, shape.attention, 10));
    gate_up_.emplace(Weights(2 * shape.mlp, shape.hidden, 11));
    down_.emplace(Weights(shape.hidden, shape.mlp, 12));
    norm_weight_.emplace(RandomFloats(static_cast<size_t>(shape.hidden), norm_scale, 3));
    counters_.emplace(std::vector<int32_t>(kMlpCounters, 0));
  }

  MatmulDevice device_{};
  std::optional<DeviceBuffer<Half>> project_, gate_up_, down_, attention_, normed_, gated_;
  std::optional<DeviceBuffer<float>> norm_weight_, residual_, workspace_;
  std::optional<DeviceBuffer<int32_t>> counters_;
  std::optional<DeviceBuffer<unsigned long long>> saturations_;
};

TEST_P(MlpTest, GivesTheBitsOfKernelsOfTheirOwn) {
  if (!PlanMlp(8, GetParam(), device_).possible) GTEST_SKIP() << "not on this card";
  MakeWeights(1.0f);
  for (int32_t m : {5, 8, 9, 31, 32, 33, 63, 64}) {
    const Result expected = ByKernelsOfTheirOwn(m);
    Reset(m);
    LaunchOneKernel(m);
    Expect(expected, Take(m), m);
    ASSERT_EQ(counters_->Download(), std::vector<int32_t>(kMlpCounters, 0));
  }
}

TEST_P(MlpTest, CountsSaturationsOnce) {
  if (!PlanMlp(8, GetParam(), device_).possible) GTEST_SKIP() << "not on this card";
  MakeWeights(3e4f);
  for (int32_t m : {7, 40}) {
    const Result expected = ByKernelsOfTheirOwn(m);
    EXPECT_GT(expected.saturations, 0u);
    Reset(m);
    LaunchOneKernel(m);
    Expect(expected, Take(m), m);
  }
}

// Launch after launch, each behind the one before it.
TEST_P(MlpTest, LaunchesThatFollowEachOtherDoNotDisturbEachOther) {
  if (!PlanMlp(8, GetParam(), device_).possible) GTEST_SKIP() << "not on this card";
  MakeWeights(1.0f);
  for (int32_t m : {8, 32, 64}) {
    constexpr int kTimes = 50;
    Result results[2];
    for (Result& result : results) {
      Reset(m);
      for (int i = 0; i < kTimes; ++i) LaunchOneKernel(m);
      result = Take(m);
    }
    Expect(results[0], results[1], m);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlpTest,
                         testing::Values(MlpShape{1536, 1536, 8960}, MlpShape{896, 896, 4864},
                                         MlpShape{2048, 1280, 6912}, MlpShape{256, 128, 1152},
                                         MlpShape{2048, 1664, 8192}),
                         [](const auto& test) {
                           return "hidden" + std::to_string(test.param.hidden) + "mlp" +
                                  std::to_string(test.param.mlp);
                         });

}  // namespace
}  // namespace ridge::kernels::cuda
