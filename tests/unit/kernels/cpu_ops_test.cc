// The CPU kernels against the plain loops, bit for bit.
#include <sys/mman.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/layer_ops.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/target.h"
#include "kernels/reference/ops.h"
#include "tests/unit/kernels/instruction_sets.h"

namespace ridge::kernels {
namespace {

using reference::Mode;

class CpuOpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cpu::TargetName().empty()) GTEST_SKIP() << "this machine cannot run the CPU kernels";
  }

  // Values that fp16 holds.
  std::vector<float> Random(int64_t size, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(size);
    for (float& value : values) value = HalfToFloat(FloatToHalf(normal(random_)));
    return values;
  }

  static std::vector<Half> Pack(const std::vector<float>& w, int64_t n, int64_t k) {
    std::vector<Half> halves(w.size()), packed(cpu::PackedSize(n, k));
    for (size_t i = 0; i < w.size(); ++i) halves[i] = FloatToHalf(w[i]);
    cpu::PackRows(halves.data(), 0, n, k, packed.data());
    return packed;
  }

  // All panels.
  void Multiply(const cpu::MatmulArgs& args) { Multiply(args, 0, cpu::NumPanels(args.n)); }
  void Multiply(const cpu::MatmulArgs& args, int64_t panel_begin, int64_t panel_end) {
    scratch_.resize(static_cast<size_t>(cpu::MatmulScratch(args.k)));
    cpu::Matmul(args, panel_begin, panel_end, scratch_.data());
  }

  void Attend(const cpu::AttentionArgs& args) {
    scratch_.resize(static_cast<size_t>(cpu::AttentionScratch(args.num_states(), args.head_dim)));
    cpu::Attention(args, scratch_.data());
  }

  std::mt19937 random_{42};
  std::vector<float> scratch_;
};

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
        << "at " << i << ": " << got[i] << " against " << expected[i];
  }
}

TEST_F(CpuOpsTest, MatmulGivesTheReferencesBits) {
  for (const int64_t k : {1, 16, 37, 256, 576, 1536, 2304}) {
    for (const int64_t n : {1, 16, 33, 160, 176}) {
      const std::vector<float> w = Random(n * k), bias = Random(n);
      const std::vector<Half> packed = Pack(w, n, k);
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 30, 64}) {
        const std::vector<float> x = Random(m * k);
        std::vector<float> expected(m * n), got(m * n, NAN);
        reference::Matmul(Mode::kContract, x.data(), w.data(), bias.data(), m, n, k, expected.data());
        Multiply({x.data(), packed.data(), got.data(), m, n, k, n, bias.data(), false});
        ExpectSameBits(got, expected);
      }
    }
  }
}

TEST_F(CpuOpsTest, MatmulDoesNotDependOnHowPanelsAreShared) {
  const int64_t m = 3, n = 200, k = 320;
  const std::vector<float> x = Random(m * k);
  const std::vector<Half> packed = Pack(Random(n * k), n, k);
  std::vector<float> whole(m * n), parts(m * n);
  Multiply({x.data(), packed.data(), whole.data(), m, n, k, n});
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 4}, {4, 7}}) {
    Multiply({x.data(), packed.data(), parts.data(), m, n, k, n}, begin, end);
  }
  ExpectSameBits(parts, whole);
}

// Rows of many blocks have the bits that they have alone.
TEST_F(CpuOpsTest, MatmulOfARowDoesNotDependOnTheOtherRows) {
  const int64_t m = 100, n = 33, k = 8960;
  const std::vector<float> x = Random(m * k);
  const std::vector<Half> packed = Pack(Random(n * k), n, k);
  std::vector<float> together(m * n), alone(m * n);
  Multiply({x.data(), packed.data(), together.data(), m, n, k, n});
  for (int64_t row = 0; row < m; ++row) {
    Multiply({x.data() + row * k, packed.data(), alone.data() + row * n, 1, n, k, n});
  }
  ExpectSameBits(alone, together);
}

TEST_F(CpuOpsTest, MatmulAddsToTheResidual) {
  const int64_t n = 40, k = 64;
  const std::vector<float> x = Random(k), w = Random(n * k), residual = Random(n);
  std::vector<float> product(n), y = residual;
  reference::Matmul(Mode::kContract, x.data(), w.data(), nullptr, 1, n, k, product.data());
  Multiply({x.data(), Pack(w, n, k).data(), y.data(), 1, n, k, n, nullptr, true});
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(y[i], residual[i] + product[i]);
}

TEST_F(CpuOpsTest, RowOpsGiveTheReferencesBits) {
  int64_t saturations = 0;
  for (const int64_t size : {2, 16, 24, 64, 100, 576, 1000}) {
    const std::vector<float> a = Random(size, 3.0f), b = Random(size);
    std::vector<float> got(size), expected(size);
    cpu::RmsNorm(a.data(), b.data(), 1e-5f, size, got.data(), &saturations);
    reference::RmsNorm(Mode::kContract, a.data(), b.data(), 1e-5f, size, expected.data());
    ExpectSameBits(got, expected);

    cpu::SwiGlu(a.data(), b.data(), size, got.data(), &saturations);
    reference::SwiGlu(Mode::kContract, a.data(), b.data(), size, expected.data());
    ExpectSameBits(got, expected);

    got = expected = a;
    cpu::RotateHead(b.data(), b.data() + size / 2, size, got.data(), &saturations);
    reference::RotateHead(Mode::kContract, b.data(), b.data() + size / 2, size, expected.data());
    ExpectSameBits(got, expected);

    got = expected = a;
    cpu::NormHead(b.data(), 1e-6f, size, got.data());
    reference::NormHead(Mode::kContract, b.data(), 1e-6f, size, expected.data());
    ExpectSameBits(got, expected);

    const std::vector<float> logits = Random(size, 10.0f);
    EXPECT_EQ(cpu::LogSumExp(logits.data(), size),
              reference::LogSumExp(Mode::kContract, logits.data(), size));
    EXPECT_NEAR(cpu::LogSumExp(logits.data(), size),
                reference::LogSumExp(Mode::kFloat32, logits.data(), size), 1e-5);
  }
  EXPECT_EQ(saturations, 0);
}

TEST_F(CpuOpsTest, RoundsRowsAndCountsWhatDoesNotFit) {
  std::vector<float> row = {0.1f, 1e5f, -2e5f, 3.0f, 1e-9f, 65504.0f, 7.0f, 8.0f, 1e38f};
  int64_t saturations = 0;
  cpu::RoundRow(static_cast<int64_t>(row.size()), row.data(), &saturations);
  EXPECT_EQ(saturations, 3);
  EXPECT_EQ(row[0], HalfToFloat(FloatToHalf(0.1f)));
  EXPECT_EQ(row[2], -65504.0f);
  EXPECT_EQ(row[4], 0.0f);
  EXPECT_EQ(row[8], 65504.0f);
}

TEST_F(CpuOpsTest, ConvertsHalvesBothWays) {
  const std::vector<float> values = Random(37);
  std::vector<Half> halves(37);
  std::vector<float> back(37);
  std::vector<Half> column(37 * 3, 0);
  cpu::ToHalf(values.data(), 37, halves.data());
  cpu::ToHalfStrided(values.data(), 37, 3, column.data());
  for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(column[3 * i], halves[i]);
  cpu::FromHalf(halves.data(), 37, back.data());
  ExpectSameBits(back, values);
}

struct AttentionCase {
  int32_t group_size, head_dim, num_rows;
  int64_t first_position;
};

class CpuAttentionTest : public CpuOpsTest, public ::testing::WithParamInterface<AttentionCase> {};

TEST_P(CpuAttentionTest, GivesTheReferencesBits) {
  const auto [group_size, head_dim, num_rows, first_position] = GetParam();
  const int64_t num_keys = first_position + num_rows, d = head_dim, block_size = 2 * cpu::kKvBlockTokens * d;
  const std::vector<float> keys = Random(num_keys * d), values = Random(num_keys * d);
  const std::vector<float> q = Random(int64_t{num_rows} * group_size * d, 2.0f);

  // Blocks in an order that has nothing to do with the positions'; what no token was written to is NaN.
  const int64_t num_blocks = (num_keys + cpu::kKvBlockTokens - 1) / cpu::kKvBlockTokens;
  std::vector<int32_t> table(num_blocks);
  for (int64_t i = 0; i < num_blocks; ++i) table[i] = static_cast<int32_t>(num_blocks - 1 - i);
  std::vector<Half> pool(num_blocks * block_size, 0x7E00);
  for (int64_t key = 0; key < num_keys; ++key) {
    Half* at = pool.data() + table[key / cpu::kKvBlockTokens] * block_size + key % cpu::kKvBlockTokens * d;
    cpu::ToHalf(values.data() + key * d, d, at + block_size / 2);
    at = pool.data() + table[key / cpu::kKvBlockTokens] * block_size + key % cpu::kKvBlockTokens;
    for (int64_t i = 0; i < d; ++i) at[i * cpu::kKvBlockTokens] = FloatToHalf(keys[key * d + i]);
  }

  int64_t saturations = 0;
  std::vector<float> got(q.size()), expected(q.size()), plain(d);
  const int64_t stride = int64_t{group_size} * d;
  const cpu::AttentionArgs args{q.data(),       got.data(), stride,         stride,       num_rows,
                                first_position, group_size, head_dim,       pool.data(),  table.data(),
                                block_size,     0,          block_size / 2, &saturations, {}};
  Attend(args);
  for (int64_t i = 0; i < int64_t{num_rows} * group_size; ++i) {
    const int64_t visible = first_position + i / group_size + 1;
    reference::Attention(Mode::kContract, q.data() + i * d, keys.data(), values.data(), visible, d,
                         expected.data() + i * d);
    reference::Attention(Mode::kFloat32, q.data() + i * d, keys.data(), values.data(), visible, d,
                         plain.data());
    for (int64_t j = 0; j < d; ++j) ASSERT_NEAR(expected[i * d + j], plain[j], 4e-3);
  }
  ExpectSameBits(got, expected);
  EXPECT_EQ(saturations, 0);

  // Chunk by chunk, as threads that share a long context do.
  const int64_t chunk_size = args.num_states() * cpu::PartialStride(head_dim);
  std::vector<float> partials(args.num_chunks() * chunk_size, NAN);
  for (int64_t chunk = args.num_chunks() - 1; chunk >= 0; --chunk) {
    cpu::AttentionChunk(args, chunk, partials.data() + chunk * chunk_size, scratch_.data());
  }
  std::fill(got.begin(), got.end(), NAN);
  cpu::FoldChunks(args, partials.data());
  ExpectSameBits(got, expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuAttentionTest,
                         ::testing::Values(AttentionCase{1, 16, 1, 0}, AttentionCase{1, 64, 1, 63},
                                           AttentionCase{3, 64, 1, 64}, AttentionCase{3, 64, 16, 0},
                                           AttentionCase{6, 128, 5, 250}, AttentionCase{2, 32, 16, 505},
                                           AttentionCase{9, 80, 2, 1023}, AttentionCase{4, 256, 1, 2000},
                                           AttentionCase{7, 64, 1, 1500}, AttentionCase{7, 64, 13, 250}));

TEST_F(CpuOpsTest, AttentionOfARowDoesNotDependOnTheOtherRows) {
  const int64_t d = 64, num_keys = 300, block_size = 2 * cpu::kKvBlockTokens * d;
  std::vector<int32_t> table;
  for (int32_t i = 0; i < 19; ++i) table.push_back(i);
  std::vector<Half> pool(19 * block_size);
  for (Half& half : pool) half = FloatToHalf(Random(1)[0]);
  const std::vector<float> q = Random(16 * 3 * d);
  int64_t saturations = 0;
  std::vector<float> together(q.size()), alone(q.size());
  cpu::AttentionArgs args{
      q.data(), together.data(), 3 * d,        3 * d,      16, num_keys - 16,  3,
      64,       pool.data(),     table.data(), block_size, 0,  block_size / 2, &saturations,
      {}};
  Attend(args);
  for (int64_t row = 0; row < 16; ++row) {
    args.q = q.data() + row * 3 * d;
    args.out = alone.data() + row * 3 * d;
    args.num_rows = 1;
    args.first_position = num_keys - 16 + row;
    Attend(args);
  }
  ExpectSameBits(alone, together);
}

// One decode row whose keys lie before a page that must not be read.
class PaddedAttentionTest : public CpuOpsTest {
 protected:
  static constexpr int64_t kHeadDim = 64, kGroup = 3, kSeen = 300;
  static constexpr int64_t kBlockSize = 2 * cpu::kKvBlockTokens * kHeadDim;
  static constexpr int64_t kBlocks = 1024 / cpu::kKvBlockTokens;
  static constexpr size_t kBytes = kBlocks * kBlockSize * sizeof(Half);

  void SetUp() override {
    CpuOpsTest::SetUp();
    memory_ = mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory_, MAP_FAILED);
    cpu::ToHalf(Random(kBlocks * kBlockSize).data(), kBlocks * kBlockSize, static_cast<Half*>(memory_));
    for (int32_t i = 0; i < 2 * kBlocks; ++i) table_.push_back(i);
    ASSERT_EQ(mprotect(static_cast<char*>(memory_) + kBytes, kBytes, PROT_NONE), 0);
    q_ = Random(kGroup * kHeadDim);
  }
  void TearDown() override { munmap(memory_, 2 * kBytes); }

  std::vector<float> AttendPadded(int64_t padded_keys) {
    int64_t saturations = 0;
    std::vector<float> out(q_.size(), NAN);
    const int64_t stride = kGroup * kHeadDim;
    Attend({.q = q_.data(),
            .out = out.data(),
            .q_stride = stride,
            .out_stride = stride,
            .num_rows = 1,
            .first_position = kSeen - 1,
            .group_size = kGroup,
            .head_dim = kHeadDim,
            .pool = static_cast<const Half*>(memory_),
            .block_table = table_.data(),
            .block_stride = kBlockSize,
            .k_offset = 0,
            .v_offset = kBlockSize / 2,
            .saturations = &saturations,
            .next = {},
            .padded_keys = padded_keys});
    return out;
  }

  void* memory_ = nullptr;
  std::vector<int32_t> table_;
  std::vector<float> q_;
};

TEST_F(PaddedAttentionTest, KeysBeyondARowsOwnChangeNoBit) {
  const std::vector<float> alone = AttendPadded(0);
  for (const int64_t padded : {1, 300, 301, 304, 511, 512, 513, 768, 1000, 1024}) {
    SCOPED_TRACE(padded);
    ExpectSameBits(AttendPadded(padded), alone);
  }
}

TEST_F(PaddedAttentionTest, KeysBeyondARowsOwnAreRead) {
  const auto read_beyond = [this] {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would catch it
    AttendPadded(1025);
  };
  EXPECT_EXIT(read_beyond(), testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(CpuOpsTest, EveryInstructionSetGivesTheSameBits) {
  const int64_t m = 40, n = 90, k = 576, d = 64, num_blocks = 20, block_size = 2 * cpu::kKvBlockTokens * d;
  const std::vector<float> x = Random(m * k), weight = Random(k), q = Random(3 * d);
  const std::vector<Half> packed = Pack(Random(n * k), n, k);
  std::vector<int32_t> table;
  for (int32_t i = 0; i < num_blocks; ++i) table.push_back(i);
  std::vector<Half> pool(num_blocks * block_size);
  cpu::ToHalf(Random(num_blocks * block_size).data(), num_blocks * block_size, pool.data());

  std::vector<float> first;
  for (const int64_t set : cpu::InstructionSets()) {
    SCOPED_TRACE(hwy::TargetName(set));
    const cpu::OnlyInstructionSet only(set);
    int64_t saturations = 0;
    std::vector<float> product(m * n), norm(k), gated(k), attended(3 * d);
    Multiply({x.data(), packed.data(), product.data(), m, n, k, n});
    cpu::RmsNorm(x.data(), weight.data(), 1e-5f, k, norm.data(), &saturations);
    cpu::SwiGlu(x.data(), weight.data(), k, gated.data(), &saturations);
    Attend({q.data(),
            attended.data(),
            3 * d,
            3 * d,
            1,
            num_blocks * cpu::kKvBlockTokens - 1,
            3,
            64,
            pool.data(),
            table.data(),
            block_size,
            0,
            block_size / 2,
            &saturations,
            {}});
    std::vector<float> all = {cpu::LogSumExp(x.data(), m * k)};
    for (const auto* part : {&product, &norm, &gated, &attended}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    if (first.empty()) first = all;
    ExpectSameBits(all, first);
  }
}

}  // namespace
}  // namespace ridge::kernels
