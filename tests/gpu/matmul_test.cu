// Every matmul kernel gives the bits of one plain chain per chunk, whatever the number of rows and the cut of
// the work.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/sampling_row.cuh"
#include "kernels/cuda/silu_mul.cuh"
#include "kernels/half.h"
#include "kernels/reference/ops.h"
#include "tests/gpu/device_buffer.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;

// The contract as plainly as it can be said on the card: out[m][n], a warp for 16 rows of W and 8 of x,
// element by element.
__global__ void PlainMatmul(const Half* w, const Half* x, int m, int n, int k, int chunk, float* out) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4 * 2, row = blockIdx.x * 16, token = blockIdx.y * 8;
  const auto pair = [k](const Half* matrix, int r, int limit, int column) {
    return r < limit ? *reinterpret_cast<const uint32_t*>(matrix + static_cast<int64_t>(r) * k + column) : 0u;
  };
  FragmentC total{};
  for (int begin = 0; begin < k; begin += chunk) {
    FragmentC c{};
    for (int step = begin; step < min(begin + chunk, k); step += 16) {
      const FragmentA a = {{pair(w, row + g, n, step + t), pair(w, row + g + 8, n, step + t),
                            pair(w, row + g, n, step + t + 8), pair(w, row + g + 8, n, step + t + 8)}};
      const FragmentB b = {{pair(x, token + g, m, step + t), pair(x, token + g, m, step + t + 8)}};
      Mma(c, a, b);
    }
    for (int i = 0; i < 4; ++i) total.x[i] = begin == 0 ? c.x[i] : __fadd_rn(total.x[i], c.x[i]);
  }
  for (int i = 0; i < 4; ++i) {
    const int r = row + g + i / 2 * 8, column = token + t + i % 2;
    if (r < n && column < m) out[static_cast<int64_t>(column) * n + r] = total.x[i];
  }
}

std::vector<Half> RandomHalves(size_t size, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<Half> values(size);
  for (Half& value : values) value = FloatToHalf(normal(random));
  return values;
}

std::vector<float> RandomFloats(size_t size, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> ToFloats(const std::vector<Half>& halves) {
  std::vector<float> floats;
  for (Half half : halves) floats.push_back(HalfToFloat(half));
  return floats;
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

MatmulDevice Device() {
  DeviceInfo info;
  EXPECT_CUDA_OK(GetDeviceInfo(&info));
  return MatmulDeviceOf(info);
}

struct Sizes {
  int n;
  int k;
};

class MatmulTest : public testing::TestWithParam<Sizes> {
 protected:
  static constexpr int kMaxRows = 300;

  void SetUp() override {
    ASSERT_CUDA_OK(PrepareMatmul());
    const auto [n, k] = GetParam();
    host_w_ = RandomHalves(static_cast<size_t>(n) * k, 1.0f / std::sqrt(static_cast<float>(k)), 1);
    host_x_ = RandomHalves(static_cast<size_t>(kMaxRows) * k, 1.0f, 2);
    w_ = DeviceBuffer<Half>(host_w_);
    x_ = DeviceBuffer<Half>(host_x_);
    packed_ = DeviceBuffer<Half>(static_cast<size_t>(PackedSize(n, k)));
    ASSERT_CUDA_OK(cudaMemset(packed_.data(), 0, packed_.size() * sizeof(Half)));
    ASSERT_CUDA_OK(LaunchPackRows(w_.data(), 0, n, {packed_.data(), k, 0, RowPlacement::kPlain}, nullptr));
    DeviceBuffer<float> out(static_cast<size_t>(kMaxRows) * n);
    PlainMatmul<<<dim3((n + 15) / 16, (kMaxRows + 7) / 8), 32>>>(w_.data(), x_.data(), kMaxRows, n, k,
                                                                 static_cast<int>(DotChunk(k)), out.data());
    plain_ = out.Download();
  }

  std::vector<MatmulPlan> Plans(int m) const {
    const auto [n, k] = GetParam();
    std::vector<MatmulPlan> plans = {PlanMatmul(m, n, k, Device()),
                                     PlanMatmul(m, n, k, Device(), MatmulOutput::kPartials)};
    for (int32_t token_tile : {32, 64, 128}) {
      const int32_t row_tile = token_tile == 128 ? 128 : 64;
      const auto chunks = static_cast<int32_t>((k + DotChunk(k) - 1) / DotChunk(k));
      for (const bool split : {false, true}) {
        for (const int32_t cluster : {0, split && HasWgmma() && chunks > 1 ? chunks : 0}) {
          plans.push_back({MatmulKernel::kTiled, token_tile, row_tile, split, 0, cluster});
        }
        if (token_tile >= 64 && HasWgmma()) {
          MatmulPlan wgmma = {MatmulKernel::kWgmma, token_tile, 128, split, 0};
          wgmma.cluster_rows = (n + 127) / 128 % 2 == 0 ? 2 : 1;
          wgmma.cluster_tokens = (m + token_tile - 1) / token_tile % 2 == 0 ? 2 : 1;
          plans.push_back(wgmma);
        }
      }
    }
    if (m <= 64 && HasWgmma()) {
      const auto chunks = static_cast<int32_t>((k + DotChunk(k) - 1) / DotChunk(k));
      const int32_t tiles = (n + 15) / 16, tokens = m <= 32 ? 32 : 64;
      std::vector<MatmulPlan> batch;
      if (DotChunk(k) == 256) {
        batch.push_back({MatmulKernel::kBatch, tokens, 16 * 12, false, (tiles + 11) / 12});
        batch.push_back({MatmulKernel::kBatch, 64, 16 * 5, false, 2});
      }
      for (const int32_t cluster : {0, chunks > 1 ? chunks : 0}) {
        batch.push_back({MatmulKernel::kBatch, tokens, 64, true, (tiles + 3) / 4 * chunks, cluster});
        if (m <= 8) batch.push_back({MatmulKernel::kBatch, 8, 64, true, (tiles + 3) / 4 * chunks, cluster});
      }
      for (const MatmulPlan& plan : batch) {
        if (MatmulBatchSharedBytes(plan, k) + kMatmulBatchStaticBytes <= Device().shared_bytes_per_block)
          plans.push_back(plan);
      }
    }
    if (m <= 32 && k <= 2048 && MatmulResidentSharedBytes(k) <= Device().shared_bytes_per_block) {
      plans.push_back({MatmulKernel::kResident, 32, 48, false, 3});
      plans.push_back({MatmulKernel::kResident, 32, 16 * kResidentWarps, false, 2});
    }
    return plans;
  }

  // Runs a plan twice: the second time finds the workspace as the first left it.
  std::vector<float> Run(const MatmulPlan& plan, MatmulArgs args, std::vector<float> y,
                         const Half* packed = nullptr) const {
    const auto [n, k] = GetParam();
    DeviceBuffer<float> workspace(static_cast<size_t>(MatmulWorkspaceBytes(plan, args.m, n, k)) / 4 + 1);
    DeviceBuffer<int32_t> counters(
        std::vector<int32_t>(static_cast<size_t>(MatmulCounterBytes(plan, args.m, n)) / 4 + 1));
    args.n = n;
    args.k = k;
    args.w = packed != nullptr ? packed : packed_.data();
    args.y_stride = n;
    args.workspace = workspace.data();
    args.counters = counters.data();
    std::vector<float> result;
    for (int repeat = 0; repeat < 2; ++repeat) {
      DeviceBuffer<float> out(y);
      args.y = out.data();
      EXPECT_CUDA_OK(LaunchMatmul(plan, args, nullptr));
      const std::vector<float> values = out.Download();
      if (repeat == 1) EXPECT_EQ(Bits(values), Bits(result)) << "second run";
      result = values;
    }
    return result;
  }

  std::vector<Half> host_w_, host_x_;
  DeviceBuffer<Half> w_{0}, x_{0}, packed_{0};
  std::vector<float> plain_;  // [kMaxRows][n]
};

TEST_P(MatmulTest, PlainChainIsCloseToTheReference) {
  const auto [n, k] = GetParam();
  constexpr int kRows = 2;
  std::vector<float> expected(static_cast<size_t>(kRows) * n);
  const std::vector<float> w = ToFloats(host_w_), x = ToFloats(host_x_);
  reference::Matmul(reference::Mode::kFloat32, x.data(), w.data(), nullptr, kRows, n, k, expected.data());
  // fp16 holds 11 bits: half an ulp of a value near 1 is 4.9e-4.
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(plain_[i], expected[i], 1e-4) << i;
}

TEST_P(MatmulTest, EveryNumberOfRowsAndPlanGivesTheSameBits) {
  const auto [n, k] = GetParam();
  const std::vector<uint32_t> expected = Bits(plain_);
  for (int m : {1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 200, 300}) {
    for (const MatmulPlan& plan : Plans(m)) {
      MatmulArgs args{};
      args.x = x_.data();
      args.m = m;
      args.output = MatmulOutput::kStore;
      const std::vector<float> y = Run(plan, args, std::vector<float>(static_cast<size_t>(m) * n, NAN));
      ASSERT_EQ(Bits(y),
                std::vector<uint32_t>(expected.begin(), expected.begin() + static_cast<int64_t>(y.size())))
          << "m " << m << ", " << plan.ToString();
    }
  }
}

TEST_P(MatmulTest, BiasComesBeforeTheResidual) {
  const auto [n, k] = GetParam();
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 1.0f, 3);
  const DeviceBuffer<float> device_bias(bias);
  for (int m : {1, 13, 50}) {
    const std::vector<float> residual = RandomFloats(static_cast<size_t>(m) * n, 3.0f, 4);
    std::vector<float> expected(residual.size());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = residual[i] + (plain_[i] + bias[i % n]);
    for (const MatmulPlan& plan : Plans(m)) {
      MatmulArgs args{};
      args.x = x_.data();
      args.m = m;
      args.bias = device_bias.data();
      args.output = MatmulOutput::kResidual;
      ASSERT_EQ(Bits(Run(plan, args, residual)), Bits(expected)) << "m " << m << ", " << plan.ToString();
    }
  }
}

// The plain matrix taken as if it had been packed as gate and up: rows 0..7 of a tile gate, 8..15 up.
TEST_P(MatmulTest, SwiGluTakesBothHalvesOfATile) {
  const auto [n, k] = GetParam();
  if (n % 16 != 0) GTEST_SKIP() << "gate and up fill whole tiles";
  DeviceBuffer<unsigned long long> saturations(std::vector<unsigned long long>(1));
  for (int m : {1, 13, 50, 130}) {
    for (const MatmulPlan& plan : Plans(m)) {
      DeviceBuffer<Half> gated(static_cast<size_t>(m) * n / 2);
      MatmulArgs args{};
      args.x = x_.data();
      args.m = m;
      args.gated = gated.data();
      args.output = MatmulOutput::kSwiGlu;
      args.saturations = saturations.data();
      Run(plan, args, {});
      const std::vector<Half> values = gated.Download();
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t token = i / (n / 2), channel = i % (n / 2), row = channel / 8 * 16 + channel % 8;
        float expected = 0;
        reference::SwiGlu(reference::Mode::kContract, &plain_[token * n + row], &plain_[token * n + row + 8],
                          1, &expected);
        ASSERT_EQ(values[i], FloatToHalf(expected)) << "m " << m << ", " << plan.ToString() << ", " << i;
      }
    }
  }
  EXPECT_EQ(saturations.Download()[0], 0u);
}

TEST_P(MatmulTest, ArgMaxIsThatOfThePlainRows) {
  const auto [n, k] = GetParam();
  for (int m : {1, 3, 8, 17, 32, 33, 64}) {
    for (const MatmulPlan& plan : Plans(m)) {
      if (!TakesArgMax(plan)) continue;
      DeviceBuffer<uint64_t> best(std::vector<uint64_t>(static_cast<size_t>(m)));
      MatmulArgs args{};
      args.x = x_.data();
      args.m = m;
      args.output = MatmulOutput::kArgMax;
      args.best = best.data();
      Run(plan, args, {});
      const std::vector<uint64_t> result = best.Download();
      for (int row = 0; row < m; ++row) {
        const float* logits = &plain_[static_cast<size_t>(row) * n];
        const int expected = static_cast<int>(std::max_element(logits, logits + n) - logits);
        EXPECT_EQ(CandidateId(result[row]), expected) << plan.ToString() << ", m " << m << ", row " << row;
        EXPECT_EQ(CandidateValue(result[row]), logits[expected]);
      }
    }
  }
}

TEST_P(MatmulTest, ChunkSumsThatAreLeftAddUpToThePlainRows) {
  const auto [n, k] = GetParam();
  for (int m : {1, 5, 8, 17, 32, 33, 64}) {
    for (const MatmulPlan& plan : Plans(m)) {
      if (!TakesPartials(plan)) continue;
      const auto size = static_cast<size_t>(m) * n;
      const auto chunks = static_cast<size_t>(NumChunks(k));
      DeviceBuffer<float> workspace(std::vector<float>(chunks * size, NAN));
      ASSERT_LE(chunks * size * sizeof(float), static_cast<size_t>(MatmulWorkspaceBytes(plan, m, n, k)));
      MatmulArgs args{};
      args.w = packed_.data();
      args.x = x_.data();
      args.m = m;
      args.n = n;
      args.k = k;
      args.output = MatmulOutput::kPartials;
      args.workspace = workspace.data();
      ASSERT_CUDA_OK(LaunchMatmul(plan, args, nullptr));
      const std::vector<float> partials = workspace.Download();
      std::vector<float> sums(partials.begin(), partials.begin() + static_cast<int64_t>(size));
      for (size_t i = size; i < partials.size(); ++i) sums[i % size] += partials[i];
      ASSERT_EQ(Bits(sums), Bits({plain_.begin(), plain_.begin() + static_cast<int64_t>(size)}))
          << "m " << m << ", " << plan.ToString();
    }
  }
}

// Against the plain matmul and the kernel that rotates and stores its rows.
TEST_P(MatmulTest, RopeAndKvWriteAsEpilogueGiveTheBitsOfTheirKernel) {
  const auto [n, k] = GetParam();
  constexpr int kHeadDim = 16, kKvHeads = 1, kSlots = 3, kSlotBlocks = 32, kBlocks = 128, kPositions = 400;
  if (n % kHeadDim != 0 || n > 2048) GTEST_SKIP() << "not heads";
  DeviceBuffer<Half> rotary(static_cast<size_t>(PackedSize(n, k)));
  ASSERT_CUDA_OK(
      LaunchPackRows(w_.data(), 0, n, {rotary.data(), k, 0, RowPlacement::kRotary, kHeadDim}, nullptr));
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 1.0f, 7);
  std::vector<float> rotary_bias(bias.size());
  for (int row = 0; row < n; ++row)
    rotary_bias[static_cast<size_t>(PackedRow(RowPlacement::kRotary, row, kHeadDim))] = bias[row];
  const DeviceBuffer<float> device_bias(bias), device_rotary_bias(rotary_bias);
  const DeviceBuffer<float> cosines(RandomFloats(kPositions * kHeadDim / 2, 0.5f, 8)),
      sines(RandomFloats(kPositions * kHeadDim / 2, 0.5f, 9));
  DeviceBuffer<unsigned long long> saturations(std::vector<unsigned long long>(1));
  for (int m : {1, 13, 50, 130}) {
    // Neighbouring positions in two slots, and a row of padding.
    std::vector<int32_t> positions, slots, table(kSlots * kSlotBlocks);
    for (int row = 0; row < m; ++row) {
      positions.push_back(row == 0 ? 0 : row / 2 + 17);
      slots.push_back(row == 0 ? -1 : row % 2 * 2);
    }
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>((i * 7) % kBlocks);
    const DeviceBuffer<int32_t> device_positions(positions), device_slots(slots), device_table(table);
    const size_t pool_size = size_t{kBlocks} * 2 * kKvHeads * kKvBlockTokens * kHeadDim;
    RopeKvArgs rope{};
    rope.cosines = cosines.data();
    rope.sines = sines.data();
    rope.positions = device_positions.data();
    rope.slots = device_slots.data();
    rope.block_tables = device_table.data();
    rope.table_stride = kSlotBlocks;
    rope.num_rows = m;
    rope.num_heads = n / kHeadDim - 2 * kKvHeads;
    rope.num_kv_heads = kKvHeads;
    rope.head_dim = kHeadDim;
    rope.saturations = saturations.data();
    if (rope.num_heads < 1) GTEST_SKIP() << "no room for a query head";
    MatmulArgs args{};
    args.x = x_.data();
    args.m = m;
    args.bias = device_bias.data();
    args.output = MatmulOutput::kStore;
    const MatmulPlan plain_plan = PlanMatmul(m, n, k, Device());
    const DeviceBuffer<float> qkv(Run(plain_plan, args, std::vector<float>(static_cast<size_t>(m) * n)));
    const size_t q_size = static_cast<size_t>(m) * rope.num_heads * kHeadDim;
    DeviceBuffer<Half> expected_q(q_size), expected_pool(pool_size);
    rope.qkv = qkv.data();
    rope.q = expected_q.data();
    rope.kv = KvLayerOf(expected_pool.data(), 1, 0, kKvHeads, kHeadDim);
    ASSERT_CUDA_OK(LaunchRopeKv(rope, nullptr));
    for (const MatmulPlan& plan : Plans(m)) {
      DeviceBuffer<Half> q(q_size), pool(pool_size);
      args.bias = device_rotary_bias.data();
      args.output = MatmulOutput::kRopeKv;
      args.rope = rope;
      args.rope.q = q.data();
      args.rope.kv = KvLayerOf(pool.data(), 1, 0, kKvHeads, kHeadDim);
      Run(plan, args, {}, rotary.data());
      ASSERT_EQ(q.Download(), expected_q.Download()) << "m " << m << ", " << plan.ToString();
      ASSERT_EQ(pool.Download(), expected_pool.Download()) << "m " << m << ", " << plan.ToString();
    }
  }
}

TEST_P(MatmulTest, NormAsPrologueGivesTheBitsOfTheReferenceNorm) {
  const auto [n, k] = GetParam();
  if (k > 2048) GTEST_SKIP() << "the prologue takes rows of up to 2,048";
  const std::vector<float> residual = RandomFloats(size_t{16} * k, 5.0f, 5),
                           weight = RandomFloats(k, 1.0f, 6);
  std::vector<Half> normed(residual.size());
  for (int row = 0; row < 16; ++row) {
    std::vector<float> out(k);
    reference::RmsNorm(reference::Mode::kContract, &residual[static_cast<size_t>(row) * k], weight.data(),
                       1e-6f, k, out.data());
    for (int i = 0; i < k; ++i) normed[static_cast<size_t>(row) * k + i] = FloatToHalf(out[i]);
  }
  const DeviceBuffer<Half> x(normed);
  const DeviceBuffer<float> norm_x(residual), norm_weight(weight);
  DeviceBuffer<unsigned long long> saturations(std::vector<unsigned long long>(1));
  for (int m : {1, 2, 3, 4}) {
    const MatmulPlan plan = PlanMatmul(m, n, k, Device());
    if (!TakesNorm(plan, m, k)) {
      EXPECT_GT(m, 2);
      continue;
    }
    MatmulArgs args{};
    args.m = m;
    args.output = MatmulOutput::kStore;
    args.saturations = saturations.data();
    args.x = x.data();
    const std::vector<float> y(static_cast<size_t>(m) * n, NAN);
    const std::vector<float> expected = Run(plan, args, y);
    args.x = nullptr;
    args.norm_x = norm_x.data();
    args.norm_weight = norm_weight.data();
    args.norm_eps = 1e-6f;
    ASSERT_EQ(Bits(Run(plan, args, y)), Bits(expected)) << "m " << m;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, MatmulTest,
    testing::Values(Sizes{64, 16}, Sizes{48, 48}, Sizes{48, 528}, Sizes{5120, 528}, Sizes{777, 80},
                    Sizes{192, 256}, Sizes{960, 576}, Sizes{1152, 896}, Sizes{2048, 1536}, Sizes{896, 4864},
                    Sizes{1536, 8960}),
    [](const auto& test) {
      std::string name("n");
      return name.append(std::to_string(test.param.n)).append("k").append(std::to_string(test.param.k));
    });

}  // namespace
}  // namespace ridge::kernels::cuda
