// Attention on the card: close to the reference, and the same bits however a step's rows and keys are cut.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/packing.h"
#include "kernels/math.h"
#include "kernels/order.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/half_ulp.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;

struct Heads {
  int num_heads;
  int num_kv_heads;
  int head_dim;
};

// How the work is cut: by AttentionPrefill, or its wgmma form where the card has it; by AttentionSplit with
// all keys of a tile in one item, with one chunk an item, or with two; by AttentionChunk, where the rows and
// the head_dim are such as it takes.
enum class Cut { kPrefill, kPrefillWgmma, kSplitWhole, kSplitChunks, kSplitPairs, kChunks };

constexpr Cut kAllCuts[] = {Cut::kPrefill, Cut::kPrefillWgmma, Cut::kSplitWhole, Cut::kSplitChunks,
                            Cut::kSplitPairs};
constexpr Cut kDecodeCuts[] = {Cut::kSplitWhole, Cut::kSplitChunks, Cut::kSplitPairs, Cut::kChunks};

// The formula of kernels/cuda/attention.h as plain loops, a maximum a tile: P is rounded relative to it.
std::vector<float> PlainAttention(const std::vector<float>& q, const std::vector<float>& keys,
                                  const std::vector<float>& values, int num_keys) {
  const int d = static_cast<int>(q.size());
  const float c = kLog2E / std::sqrt(static_cast<float>(d));
  const auto exponential = [&](float score, float max) { return Exp2(std::fma(score, c, -(max * c))); };
  float folded_max = -INFINITY, folded_sum = 0.0f;
  std::vector<float> folded(d);
  for (int begin = 0; begin < num_keys; begin += kAttentionChunk) {
    const int end = std::min(begin + kAttentionChunk, num_keys);
    float max = -INFINITY, sum = 0.0f;
    std::vector<float> out(d);
    for (int tile = begin; tile < end; tile += kAttentionTile) {
      const int tile_end = std::min(tile + kAttentionTile, end);
      std::vector<float> scores;
      for (int key = tile; key < tile_end; ++key) {
        float score = 0.0f;
        for (int i = 0; i < d; ++i) score = std::fma(q[i], keys[key * d + i], score);
        scores.push_back(score);
      }
      const float new_max = std::max(max, *std::max_element(scores.begin(), scores.end()));
      const float alpha = max == -INFINITY ? 0.0f : exponential(max, new_max);
      max = new_max;
      sum *= alpha;
      for (float& value : out) value *= alpha;
      for (int key = tile; key < tile_end; ++key) {
        const float p = HalfToFloat(FloatToHalf(exponential(scores[key - tile], max)));
        sum += p;
        for (int i = 0; i < d; ++i) out[i] = std::fma(p, values[key * d + i], out[i]);
      }
    }
    const float new_max = std::max(folded_max, max);
    const float old_factor = folded_max == -INFINITY ? 0.0f : exponential(folded_max, new_max);
    const float factor = exponential(max, new_max);
    folded_max = new_max;
    folded_sum = folded_sum * old_factor + sum * factor;
    for (int i = 0; i < d; ++i) folded[i] = folded[i] * old_factor + out[i] * factor;
  }
  for (float& value : folded) value = HalfToFloat(FloatToHalf(value / folded_sum));
  return folded;
}

class AttentionTest : public testing::TestWithParam<Heads> {
 protected:
  static constexpr int kLayers = 2, kLayer = 1;
  static constexpr int kMaxPartials = 4096, kMaxSharedTiles = 1024;

  // Sequences of these many tokens, with keys, values and queries at all their positions.
  void SetUpSequences(const std::vector<int>& lengths) {
    const auto [heads, kv_heads, d] = GetParam();
    lengths_ = lengths;
    const int longest = *std::max_element(lengths.begin(), lengths.end());
    stride_ = longest / kKvBlockTokens + 3;
    int num_blocks = 0;
    for (int length : lengths) num_blocks += (length + kKvBlockTokens - 1) / kKvBlockTokens;
    std::vector<int32_t> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937 random(7);
    std::shuffle(ids.begin(), ids.end(), random);
    // What lies beyond a sequence's last block must not be read.
    std::vector<int32_t> tables(lengths.size() * stride_, INT32_MAX);
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int page = 0; page * kKvBlockTokens < lengths[s]; ++page) {
        tables[s * stride_ + page] = ids.back();
        ids.pop_back();
      }
    }
    host_tables_ = tables;
    tables_ = DeviceBuffer<int32_t>(tables);
    // The rest of a sequence's last block is finite, and as large as can be.
    host_pool_.assign(static_cast<size_t>(num_blocks) * kLayers * 2 * kv_heads * kKvBlockTokens * d,
                      FloatToHalf(kHalfMax));
    const KvLayer kv = KvLayerOf(nullptr, kLayers, kLayer, kv_heads, d);
    std::normal_distribution<float> normal;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int position = 0; position < lengths[s]; ++position) {
        for (int head = 0; head < kv_heads; ++head) {
          for (int i = 0; i < d; ++i) {
            host_pool_[KvIndex(s, position, head, kv.key_offset) + i] = FloatToHalf(normal(random));
            host_pool_[KvIndex(s, position, head, kv.value_offset) + i] = FloatToHalf(normal(random));
          }
        }
      }
    }
    pool_ = DeviceBuffer<Half>(host_pool_);
    queries_.clear();
    for (int length : lengths) {
      queries_.emplace_back(static_cast<size_t>(length) * heads * d);
      // Scores of a few units: neither flat nor a single key.
      for (Half& q : queries_.back()) q = FloatToHalf(1.7f * normal(random));
    }
    partials_ = DeviceBuffer<float>(AttentionPartialBytes(kMaxPartials, kv_heads, d) / sizeof(float));
    counters_ = DeviceBuffer<int32_t>(
        std::vector<int32_t>(AttentionCounterBytes(kMaxSharedTiles, kv_heads) / sizeof(int32_t)));
  }

  size_t KvIndex(size_t sequence, int position, int head, int64_t offset) const {
    const auto [heads, kv_heads, d] = GetParam();
    const KvLayer kv = KvLayerOf(nullptr, kLayers, kLayer, kv_heads, d);
    const int32_t block = host_tables_[sequence * stride_ + position / kKvBlockTokens];
    return block * kv.block_stride + offset + (head * kKvBlockTokens + position % kKvBlockTokens) * d;
  }

  // Those of an imaginary card that makes the plan choose the kernel.
  static AttentionPlanLimits Limits(const Heads& heads, Cut cut) {
    const bool prefill = cut == Cut::kPrefill || cut == Cut::kPrefillWgmma;
    AttentionPlanLimits limits = {};
    limits.num_heads = heads.num_heads;
    limits.num_kv_heads = heads.num_kv_heads;
    limits.head_dim = heads.head_dim;
    limits.has_wgmma = cut == Cut::kPrefillWgmma;
    // So few that blocks take several items.
    limits.num_sms = limits.has_wgmma ? 3 * heads.num_kv_heads : prefill ? 1 << 24 : 1;
    limits.split_blocks = prefill ? 1 : 64;
    limits.max_partials = kMaxPartials;
    limits.max_shared_tiles = kMaxSharedTiles;
    return limits;
  }

  // The outputs of rows [begin, end) of each listed sequence, all in one step.
  struct Part {
    int sequence;
    int begin;
    int end;
    int num_read = 0;
  };
  // Everything but what a launch writes.
  AttentionArgs ArgsOf(const Half* q) {
    const auto [heads, kv_heads, d] = GetParam();
    AttentionArgs args = {};
    args.q = q;
    args.block_tables = tables_.data();
    args.table_stride = stride_;
    args.kv = KvLayerOf(pool_.data(), kLayers, kLayer, kv_heads, d);
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = d;
    args.partials = partials_.data();
    args.counters = counters_.data();
    return args;
  }

  std::vector<Half> Run(const std::vector<Part>& parts, Cut cut) {
    const auto [heads, kv_heads, d] = GetParam();
    const size_t row_size = static_cast<size_t>(heads) * d;
    std::vector<Half> q;
    std::vector<AttentionRun> runs;
    int32_t rows = 0;
    for (const Part& part : parts) {
      const auto& from = queries_[part.sequence];
      q.insert(q.end(), from.begin() + part.begin * row_size, from.begin() + part.end * row_size);
      runs.push_back({rows, part.end - part.begin, part.begin, part.sequence, part.num_read});
      rows += part.end - part.begin;
    }
    const AttentionPlanLimits limits = Limits(GetParam(), cut);
    AttentionPlan plan(limits);
    const bool chunks = cut == Cut::kChunks && (d == 64 || d == 128);
    plan.BuildShared(runs, cut == Cut::kSplitChunks || cut == Cut::kChunks ? 1
                           : cut == Cut::kSplitPairs                       ? 2
                                                                           : INT32_MAX);
    last_plan_ = plan.ToString();
    DeviceBuffer<Half> device_q(q), out(q.size());
    DeviceBuffer<int32_t> num_split(std::vector<int32_t>{static_cast<int32_t>(plan.split_items().size())});
    DeviceBuffer<AttentionItem> split(plan.split_items()), prefill(plan.prefill_items());
    DeviceBuffer<unsigned long long> saturations(std::vector<unsigned long long>{0});
    AttentionArgs args = ArgsOf(device_q.data());
    args.out = out.data();
    args.saturations = saturations.data();
    const auto num_prefill = static_cast<int32_t>(plan.prefill_items().size());
    if (chunks) {
      const int32_t blocks = (static_cast<int32_t>(plan.split_items().size()) + 3) * kv_heads;
      EXPECT_CUDA_OK(LaunchAttentionChunk(args, {split.data(), num_split.data()}, blocks, nullptr));
    } else if (!plan.split_items().empty()) {
      EXPECT_CUDA_OK(
          LaunchAttentionSplit(args, {split.data(), num_split.data()}, limits.split_blocks, nullptr));
    }
    if (num_prefill > 0) {
      EXPECT_CUDA_OK(
          limits.has_wgmma && HasWgmma()
              ? LaunchAttentionPrefillWgmma(args, prefill.data(), num_prefill, limits.num_sms, nullptr)
              : LaunchAttentionPrefill(args, prefill.data(), num_prefill, nullptr));
    }
    std::vector<Half> result = out.Download();
    EXPECT_EQ(saturations.Download()[0], 0u);
    for (int32_t counter : counters_.Download()) EXPECT_EQ(counter, 0);
    return result;
  }

  std::vector<Half> RowOf(const std::vector<Half>& out, int row) const {
    const size_t size = static_cast<size_t>(GetParam().num_heads) * GetParam().head_dim;
    return {out.begin() + row * size, out.begin() + (row + 1) * size};
  }

  void ExpectCloseToReference(const std::vector<Half>& out, int row, int sequence, int position) {
    const auto [heads, kv_heads, d] = GetParam();
    const KvLayer kv = KvLayerOf(nullptr, kLayers, kLayer, kv_heads, d);
    const int num_keys = position + 1;
    std::vector<float> keys(static_cast<size_t>(num_keys) * d), values(keys.size()), q(d);
    for (int head = 0; head < heads; ++head) {
      const int kv_head = head / (heads / kv_heads);
      for (int key = 0; key < num_keys; ++key) {
        for (int i = 0; i < d; ++i) {
          keys[key * d + i] = HalfToFloat(host_pool_[KvIndex(sequence, key, kv_head, kv.key_offset) + i]);
          values[key * d + i] = HalfToFloat(host_pool_[KvIndex(sequence, key, kv_head, kv.value_offset) + i]);
        }
      }
      for (int i = 0; i < d; ++i)
        q[i] = HalfToFloat(queries_[sequence][(static_cast<size_t>(position) * heads + head) * d + i]);
      const std::vector<float> expected = PlainAttention(q, keys, values, num_keys);
      std::vector<float> got(d);
      for (int i = 0; i < d; ++i)
        got[i] = HalfToFloat(out[(static_cast<size_t>(row) * heads + head) * d + i]);
      EXPECT_LE(gpu_test::LargestErrorInUlps(got, expected), 1.0)
          << "head " << head << " at position " << position << ", " << last_plan_;
    }
  }

  std::vector<int> lengths_;
  int stride_ = 0;
  std::vector<int32_t> host_tables_;
  std::vector<Half> host_pool_;
  std::vector<std::vector<Half>> queries_;
  DeviceBuffer<int32_t> tables_{0}, counters_{0};
  DeviceBuffer<Half> pool_{0};
  DeviceBuffer<float> partials_{0};
  std::string last_plan_;
};

TEST_P(AttentionTest, IsWithinAnUlpOfTheReferenceAtEveryLengthOfContext) {
  const std::vector<int> lengths = {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 513, 1000, 2049};
  SetUpSequences(lengths);
  std::vector<Part> parts;
  for (size_t s = 0; s < lengths.size(); ++s)
    parts.push_back({static_cast<int>(s), lengths[s] - 1, lengths[s]});
  for (const Cut cut : kDecodeCuts) {
    const std::vector<Half> out = Run(parts, cut);
    for (size_t s = 0; s < lengths.size(); ++s)
      ExpectCloseToReference(out, static_cast<int>(s), static_cast<int>(s), lengths[s] - 1);
  }
}

TEST_P(AttentionTest, PrefillIsWithinAnUlpOfTheReference) {
  SetUpSequences({700, 65});
  for (const Cut cut : {Cut::kPrefill, Cut::kPrefillWgmma}) {
    const std::vector<Half> out = Run({{0, 0, 700}, {1, 0, 65}}, cut);
    for (int row : {0, 1, 15, 16, 63, 64, 100, 255, 256, 300, 511, 512, 699})
      ExpectCloseToReference(out, row, 0, row);
    for (int row : {0, 17, 64}) ExpectCloseToReference(out, 700 + row, 1, row);
  }
}

TEST_P(AttentionTest, LongContextIsWithinAnUlpOfTheReference) {
  SetUpSequences({8192});
  const std::vector<Half> out = Run({{0, 8191, 8192}}, Cut::kSplitChunks);
  ExpectCloseToReference(out, 0, 0, 8191);
  EXPECT_EQ(Run({{0, 8191, 8192}}, Cut::kChunks), out);
}

// A row gives the same bits in a whole prefill, in a chunk of any size, as a decode row, and for every cut of
// its keys.
TEST_P(AttentionTest, ChunksAndCutsChangeNoBit) {
  constexpr int kLength = 1100;
  SetUpSequences({kLength});
  const std::vector<Half> whole = Run({{0, 0, kLength}}, Cut::kSplitWhole);
  for (const Cut cut : kAllCuts) EXPECT_EQ(Run({{0, 0, kLength}}, cut), whole) << static_cast<int>(cut);
  for (const int chunk : {16, 100, 512}) {
    for (const Cut cut : kAllCuts) {
      std::vector<Half> rows;
      for (int begin = 0; begin < kLength; begin += chunk) {
        const std::vector<Half> part = Run({{0, begin, std::min(begin + chunk, kLength)}}, cut);
        rows.insert(rows.end(), part.begin(), part.end());
      }
      EXPECT_EQ(rows, whole) << "chunks of " << chunk << ", cut " << static_cast<int>(cut);
    }
  }
  for (int row = 0; row < kLength; row += 1 + row / 8) {
    for (const Cut cut : kDecodeCuts) EXPECT_EQ(Run({{0, row, row + 1}}, cut), RowOf(whole, row)) << row;
  }
}

// Rows of many sequences in one step: each as alone.
TEST_P(AttentionTest, OtherRowsOfTheStepChangeNoBit) {
  const std::vector<int> lengths = {1, 40, 300, 777, 1500, 256, 129};
  SetUpSequences(lengths);
  const std::vector<Part> parts = {{0, 0, 1},       {1, 0, 40},    {2, 299, 300}, {3, 500, 777},
                                   {4, 1499, 1500}, {5, 250, 256}, {6, 0, 129}};
  for (const Cut cut : kAllCuts) {
    const std::vector<Half> together = Run(parts, cut);
    size_t at = 0;
    for (const Part& part : parts) {
      const std::vector<Half> alone = Run({part}, Cut::kSplitWhole);
      EXPECT_EQ(std::vector<Half>(together.begin() + at, together.begin() + at + alone.size()), alone)
          << "sequence " << part.sequence << ", cut " << static_cast<int>(cut);
      at += alone.size();
    }
  }
}

// Rows of a rectangle read what they do not see, as far as their sequences have blocks.
TEST_P(AttentionTest, KeysThatAreReadBehindARowChangeNoBit) {
  SetUpSequences({1500, 800, 1500});
  for (const int row : {0, 3, 63, 64, 100, 255, 256, 300, 777}) {
    const std::vector<Half> out =
        Run({{0, row, row + 1}, {1, row, row + 1}, {2, 700, 701}}, Cut::kSplitWhole);
    for (const Cut cut : {Cut::kSplitWhole, Cut::kSplitChunks, Cut::kSplitPairs}) {
      EXPECT_EQ(Run({{0, row, row + 1, 1500}, {1, row, row + 1, 800}, {2, 700, 701, 1500}}, cut), out)
          << row << ", cut " << static_cast<int>(cut);
    }
  }
}

// A decode row whose chunks the matmul behind folds gives what it gives with the finished row.
TEST_P(AttentionTest, TheMatmulBehindFoldsChunksToTheSameBits) {
  const auto [heads, kv_heads, d] = GetParam();
  const int32_t n = 48, k = heads * d;
  const MatmulPlan matmul_plan = PlanMatmul(1, n, k, {132, 99 * 1024, false});
  if (!TakesUnmerged(matmul_plan, k, d)) GTEST_SKIP() << "no kernel of this head_dim leaves its chunks";
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<Half> weights(static_cast<size_t>(PackedSize(n, k)));
  for (Half& weight : weights) weight = FloatToHalf(normal(random));
  ASSERT_CUDA_OK(PrepareMatmul());
  const std::vector<int> lengths = {1, 64, 65, 256, 257, 1000, 1537, 2048};
  SetUpSequences(lengths);
  DeviceBuffer<Half> w(weights);
  DeviceBuffer<unsigned long long> saturations(std::vector<unsigned long long>{0});
  const auto multiply = [&](MatmulArgs args) {
    DeviceBuffer<float> y(n);
    args.w = w.data();
    args.y = y.data();
    args.m = 1;
    args.n = n;
    args.k = k;
    args.y_stride = n;
    args.output = MatmulOutput::kStore;
    args.saturations = saturations.data();
    EXPECT_CUDA_OK(LaunchMatmul(matmul_plan, args, nullptr));
    return y.Download();
  };
  for (size_t s = 0; s < lengths.size(); ++s) {
    const Part part = {static_cast<int>(s), lengths[s] - 1, lengths[s]};
    MatmulArgs merged{};
    const DeviceBuffer<Half> row(Run({part}, Cut::kSplitWhole));
    merged.x = row.data();
    AttentionPlanLimits limits = Limits(GetParam(), Cut::kChunks);
    limits.chunk_blocks = 1 << 16;
    limits.max_unmerged = kMaxUnmerged;
    AttentionPlan plan(limits);
    plan.Build({{0, 1, part.begin, part.sequence}});
    ASSERT_EQ(plan.mode(), AttentionMode::kUnmerged);
    const size_t first = static_cast<size_t>(part.begin) * k;
    const DeviceBuffer<Half> q(
        std::vector<Half>(queries_[s].begin() + first, queries_[s].begin() + first + static_cast<size_t>(k)));
    DeviceBuffer<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(plan.split_items().size())});
    DeviceBuffer<AttentionItem> items(plan.split_items());
    AttentionArgs args = ArgsOf(q.data());
    args.saturations = saturations.data();
    ASSERT_CUDA_OK(LaunchAttentionChunk(args, {items.data(), count.data()}, 64 * kv_heads, nullptr));
    MatmulArgs unmerged{};
    unmerged.unmerged = {partials_.data(), items.data(), heads, kv_heads, d};
    EXPECT_EQ(multiply(unmerged), multiply(merged)) << lengths[s];
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         testing::Values(Heads{12, 2, 128}, Heads{9, 3, 64}, Heads{4, 4, 16},
                                         Heads{16, 1, 80}, Heads{2, 2, 256}, Heads{14, 2, 64},
                                         Heads{5, 1, 128}),
                         [](const testing::TestParamInfo<Heads>& shape) {
                           return std::to_string(shape.param.num_heads) + "Of" +
                                  std::to_string(shape.param.num_kv_heads) + "By" +
                                  std::to_string(shape.param.head_dim);
                         });

}  // namespace
}  // namespace ridge::kernels::cuda
