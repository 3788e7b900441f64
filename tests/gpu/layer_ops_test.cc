// The kernels between the matmuls give the reference's bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/rope_kv.h"
#include "kernels/cuda/silu_mul.h"
#include "kernels/half.h"
#include "kernels/math.h"
#include "kernels/order.h"
#include "kernels/reference/ops.h"
#include "kernels/rope_table.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/random_floats.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;
using gpu_test::RandomFloats;
using Saturations = DeviceBuffer<unsigned long long>;

std::vector<Half> ToHalves(const std::vector<float>& values) {
  std::vector<Half> halves;
  for (float value : values) halves.push_back(FloatToHalf(value));
  return halves;
}

Saturations NoSaturations() {
  return Saturations(std::vector<unsigned long long>{0});
}

TEST(Embedding, WidensTheTokensRowOfThePackedTable) {
  const int vocab = 50, hidden = 208;
  const std::vector<Half> table = ToHalves(RandomFloats(vocab * hidden, 1.0f, 1));
  DeviceBuffer<Half> rows(table), packed(static_cast<size_t>(PackedSize(vocab, hidden)));
  ASSERT_CUDA_OK(
      LaunchPackRows(rows.data(), 0, vocab, {packed.data(), hidden, 0, RowPlacement::kPlain}, nullptr));
  // Negative entries are slots, whose last tokens are 31 and 7.
  DeviceBuffer<int32_t> tokens(std::vector<int32_t>{0, 49, -1, 16, -2}), last(std::vector<int32_t>{31, 7});
  DeviceBuffer<float> residual(5 * hidden);
  ASSERT_CUDA_OK(
      LaunchEmbedding({tokens.data(), last.data(), packed.data(), residual.data(), 5, hidden}, nullptr));
  std::vector<float> expected;
  for (int token : {0, 49, 31, 16, 7}) {
    for (int i = 0; i < hidden; ++i) expected.push_back(HalfToFloat(table[token * hidden + i]));
  }
  EXPECT_EQ(residual.Download(), expected);
}

TEST(RmsNorm, HasTheReferencesBits) {
  for (const int size : {16, 64, 240, 256, 272, 576, 1536, 8960}) {
    for (const int num_rows : {1, 3, 17}) {
      const std::vector<float> x = RandomFloats(num_rows * size, 3.0f, size),
                               weight = RandomFloats(size, 1.0f, size + 1);
      std::vector<float> expected(x.size());
      for (int row = 0; row < num_rows; ++row) {
        reference::RmsNorm(reference::Mode::kContract, x.data() + row * size, weight.data(), 1e-6f, size,
                           expected.data() + row * size);
      }
      DeviceBuffer<float> device_x(x), device_weight(weight);
      DeviceBuffer<Half> out(x.size());
      Saturations saturations = NoSaturations();
      ASSERT_CUDA_OK(LaunchRmsNorm({device_x.data(), nullptr, device_weight.data(), out.data(), num_rows,
                                    size, 1e-6f, saturations.data()},
                                   nullptr));
      EXPECT_EQ(out.Download(), ToHalves(expected)) << num_rows << " rows of " << size;
    }
  }
}

TEST(RmsNorm, TakesTheRowsThatAreAskedForAndCountsSaturations) {
  const int size = 32;
  std::vector<float> x = RandomFloats(4 * size, 1.0f, 5);
  const std::vector<float> weight(size, 1e5f);  // most values leave the range of fp16
  int64_t expected_saturations = 0;
  std::vector<Half> expected;
  for (const int row : {3, 1}) {
    float squares[16] = {};
    for (int i = 0; i < size; ++i)
      squares[i % 16] = std::fma(x[row * size + i], x[row * size + i], squares[i % 16]);
    for (int width = 8; width >= 1; width /= 2) {
      for (int lane = 0; lane < width; ++lane) squares[lane] += squares[lane + width];
    }
    const float scale = Rsqrt(squares[0] / size + 1e-6f);
    for (int i = 0; i < size; ++i)
      expected.push_back(
          FloatToHalf(RoundToHalf(x[row * size + i] * scale * weight[i], &expected_saturations)));
  }
  DeviceBuffer<float> device_x(x), device_weight(weight);
  DeviceBuffer<int32_t> rows(std::vector<int32_t>{3, 1});
  DeviceBuffer<Half> out(2 * size);
  Saturations saturations = NoSaturations();
  ASSERT_CUDA_OK(LaunchRmsNorm(
      {device_x.data(), rows.data(), device_weight.data(), out.data(), 2, size, 1e-6f, saturations.data()},
      nullptr));
  EXPECT_EQ(out.Download(), expected);
  EXPECT_GT(expected_saturations, 0);
  EXPECT_EQ(saturations.Download()[0], static_cast<unsigned long long>(expected_saturations));
}

// What a matmul left, added first: chunks in ascending order, then to the row, which takes the sum.
TEST(RmsNorm, AddsTheChunkSumsThatAMatmulLeft) {
  constexpr int kStreamRows = 7;
  for (const int size : {16, 272, 1536, 8192}) {
    for (const int num_partials : {1, 5, 8}) {
      const std::vector<float> x = RandomFloats(kStreamRows * size, 3.0f, size),
                               weight = RandomFloats(size, 1.0f, size + 1),
                               partials = RandomFloats(num_partials * kStreamRows * size, 1.0f, size + 2);
      std::vector<float> sums = x;
      for (size_t i = 0; i < sums.size(); ++i) {
        float sum = partials[i];
        for (int chunk = 1; chunk < num_partials; ++chunk) sum += partials[chunk * sums.size() + i];
        sums[i] += sum;
      }
      const std::vector<int32_t> rows = {4, 0, 6};
      std::vector<float> expected_sums = x, expected(rows.size() * size);
      for (size_t i = 0; i < rows.size(); ++i) {
        const float* row = sums.data() + rows[i] * size;
        std::copy_n(row, size, expected_sums.begin() + rows[i] * size);
        reference::RmsNorm(reference::Mode::kContract, row, weight.data(), 1e-6f, size,
                           expected.data() + i * size);
      }
      DeviceBuffer<float> device_x(x), device_weight(weight), device_partials(partials);
      DeviceBuffer<int32_t> device_rows(rows);
      DeviceBuffer<Half> out(expected.size());
      Saturations saturations = NoSaturations();
      RmsNormArgs args{device_x.data(), device_rows.data(), device_weight.data(), out.data(), 3, size,
                       1e-6f,           saturations.data()};
      args.partials = device_partials.data();
      args.num_partials = num_partials;
      args.partial_rows = kStreamRows;
      args.y = device_x.data();
      ASSERT_CUDA_OK(LaunchRmsNorm(args, nullptr));
      EXPECT_EQ(device_x.Download(), expected_sums) << size << ", " << num_partials;
      EXPECT_EQ(out.Download(), ToHalves(expected)) << size << ", " << num_partials;
    }
  }
}

TEST(SiluMul, HasTheReferencesBitsWhereverGateAndUpStand) {
  const int size = 1000, num_rows = 3;
  const std::vector<float> gate = RandomFloats(num_rows * size, 4.0f, 8),
                           up = RandomFloats(num_rows * size, 1.0f, 9);
  std::vector<float> expected(gate.size()), mixed(2 * gate.size());
  reference::SwiGlu(reference::Mode::kContract, gate.data(), up.data(), num_rows * size, expected.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    mixed[2 * i] = gate[i];
    mixed[2 * i + 1] = up[i];
  }
  Saturations saturations = NoSaturations();
  DeviceBuffer<float> device_gate(gate), device_up(up), device_mixed(mixed);
  DeviceBuffer<Half> out(gate.size());
  ASSERT_CUDA_OK(LaunchSiluMul(
      {device_gate.data(), device_up.data(), size, 1, out.data(), num_rows, size, saturations.data()},
      nullptr));
  EXPECT_EQ(out.Download(), ToHalves(expected));
  DeviceBuffer<Half> out_mixed(gate.size());
  ASSERT_CUDA_OK(LaunchSiluMul({device_mixed.data(), device_mixed.data() + 1, 2 * size, 2, out_mixed.data(),
                                num_rows, size, saturations.data()},
                               nullptr));
  EXPECT_EQ(out_mixed.Download(), ToHalves(expected));
}

struct RopeCase {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  bool norm;
};

class RopeKvTest : public testing::TestWithParam<RopeCase> {
 protected:
  // What one head becomes: normed where there is a weight, rotated.
  static std::vector<float> Rotated(const RopeTable& table, const float* x, const std::vector<float>* norm,
                                    int d, int position) {
    std::vector<float> head(x, x + d);
    if (norm != nullptr) {
      std::array<float, kVirtualLanes> lanes{};
      for (int i = 0; i < d; ++i) lanes[i % kVirtualLanes] = std::fma(x[i], x[i], lanes[i % kVirtualLanes]);
      for (int width = kVirtualLanes / 2; width >= 1; width /= 2) {
        for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
      }
      const float scale = Rsqrt(lanes[0] / static_cast<float>(d) + 1e-5f);
      for (int i = 0; i < d; ++i) head[i] = x[i] * scale * (*norm)[i];
    }
    reference::RotateHead(reference::Mode::kContract, table.cosines.data() + position * (d / 2),
                          table.sines.data() + position * (d / 2), d, head.data());
    return head;
  }
};

TEST_P(RopeKvTest, RotatesAndStoresWithTheReferencesBits) {
  const auto [heads, kv_heads, d, norm] = GetParam();
  const int num_rows = 7, num_slots = 3, table_stride = 9, num_blocks = 30, layers = 2, layer = 1;
  const std::vector<int32_t> positions = {0, 1, 15, 16, 100, 37, 5}, slots = {0, 0, 0, 0, 2, 1, -1};
  const RopeTable rope = MakeRopeTable(10000.0, d, {}, 144);
  const int heads_all = heads + 2 * kv_heads;
  const std::vector<float> qkv = RandomFloats(num_rows * heads_all * d, 2.0f, 3);
  const std::vector<float> q_norm = RandomFloats(d, 1.0f, 4), k_norm = RandomFloats(d, 1.0f, 5);
  std::vector<int32_t> tables(num_slots * table_stride);
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i * 7 % num_blocks);
  const KvLayer offsets = KvLayerOf(nullptr, layers, layer, kv_heads, d);
  std::vector<Half> pool(num_blocks * offsets.block_stride, 0x3C00), expected_pool = pool, expected_q;
  for (int row = 0; row < num_rows; ++row) {
    const float* x = qkv.data() + row * heads_all * d;
    for (int head = 0; head < heads; ++head) {
      for (float value : Rotated(rope, x + head * d, norm ? &q_norm : nullptr, d, positions[row]))
        expected_q.push_back(FloatToHalf(value));
    }
    if (slots[row] < 0) continue;
    const int32_t block = tables[slots[row] * table_stride + positions[row] / kKvBlockTokens];
    for (int head = 0; head < kv_heads; ++head) {
      const int64_t at =
          block * offsets.block_stride + (head * kKvBlockTokens + positions[row] % kKvBlockTokens) * d;
      const std::vector<float> key =
          Rotated(rope, x + (heads + head) * d, norm ? &k_norm : nullptr, d, positions[row]);
      for (int i = 0; i < d; ++i) {
        expected_pool[at + offsets.key_offset + i] = FloatToHalf(key[i]);
        expected_pool[at + offsets.value_offset + i] = FloatToHalf(x[(heads + kv_heads + head) * d + i]);
      }
    }
  }
  DeviceBuffer<float> device_qkv(qkv), device_q_norm(q_norm), device_k_norm(k_norm), cosines(rope.cosines),
      sines(rope.sines);
  DeviceBuffer<int32_t> device_positions(positions), device_slots(slots), device_tables(tables);
  DeviceBuffer<Half> device_pool(pool), q(static_cast<size_t>(num_rows) * heads * d);
  Saturations saturations = NoSaturations();
  RopeKvArgs args = {};
  args.qkv = device_qkv.data();
  args.q_norm = norm ? device_q_norm.data() : nullptr;
  args.k_norm = norm ? device_k_norm.data() : nullptr;
  args.norm_eps = 1e-5f;
  args.cosines = cosines.data();
  args.sines = sines.data();
  args.positions = device_positions.data();
  args.slots = device_slots.data();
  args.block_tables = device_tables.data();
  args.table_stride = table_stride;
  args.num_rows = num_rows;
  args.num_heads = heads;
  args.num_kv_heads = kv_heads;
  args.head_dim = d;
  args.kv = KvLayerOf(device_pool.data(), layers, layer, kv_heads, d);
  args.q = q.data();
  args.saturations = saturations.data();
  ASSERT_CUDA_OK(LaunchRopeKv(args, nullptr));
  EXPECT_EQ(q.Download(), expected_q);
  EXPECT_EQ(device_pool.Download(), expected_pool);
  EXPECT_EQ(saturations.Download()[0], 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeKvTest,
                         testing::Values(RopeCase{12, 2, 128, false}, RopeCase{9, 3, 64, false},
                                         RopeCase{4, 2, 128, true}, RopeCase{3, 1, 16, true},
                                         RopeCase{2, 1, 80, false}, RopeCase{2, 2, 256, true}));

}  // namespace
}  // namespace ridge::kernels::cuda
