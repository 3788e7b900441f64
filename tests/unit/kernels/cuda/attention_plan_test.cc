// The plan of a step's attention: every row meets every chunk of its keys exactly once, within the limits.
#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/order.h"

namespace ridge::kernels::cuda {
namespace {

AttentionPlanLimits Limits() {
  // Qwen2.5-1.5B on an H200.
  return {.num_heads = 12,
          .num_kv_heads = 2,
          .head_dim = 128,
          .num_sms = 132,
          .split_blocks = 264,
          .max_partials = 4096,
          .max_shared_tiles = 1024};
}

std::vector<AttentionRun> DecodeRuns(int count, int context) {
  std::vector<AttentionRun> runs;
  for (int i = 0; i < count; ++i) runs.push_back({i, 1, context - 1, i});
  return runs;
}

// The items that blocks take one after another, by the first one: of `num_blocks` for each KV head.
std::vector<std::vector<AttentionItem>> Lists(const std::vector<AttentionItem>& items, int num_blocks,
                                              const AttentionPlanLimits& limits) {
  const size_t blocks = std::max(num_blocks / limits.num_kv_heads, 1);
  std::vector<std::vector<AttentionItem>> lists;
  for (size_t first = 0; first < std::min(blocks, items.size()); ++first) {
    lists.emplace_back();
    for (int i = static_cast<int>(first); i >= 0 && lists.back().size() <= items.size(); i = items[i].next)
      lists.back().push_back(items[i]);
  }
  return lists;
}

std::vector<std::vector<AttentionItem>> Lists(const AttentionPlan& plan, const AttentionPlanLimits& limits) {
  return Lists(plan.split_items(), limits.split_blocks, limits);
}

void ExpectCovers(const AttentionPlan& plan, const AttentionPlanLimits& limits,
                  const std::vector<AttentionRun>& runs) {
  const int group = limits.num_heads / limits.num_kv_heads;
  // (slot, virtual row) -> chunks.
  std::map<std::pair<int, int>, std::multiset<int>> seen;
  std::set<int> partials;
  std::map<int, int> items_of_counter;
  const auto take = [&](const AttentionItem& item) {
    for (int v = item.first_virtual; v < item.first_virtual + item.num_virtual; ++v) {
      for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk)
        seen[{item.table_row, v}].insert(chunk);
    }
    if (item.num_partials == 1) return;
    const int count = item.chunk_begin == 0 ? 1 : item.chunk_end - item.chunk_begin;
    for (int i = 0; i < count; ++i) {
      const int partial = (item.chunk_begin == 0 ? item.tile_partial : item.first_partial) + i;
      EXPECT_TRUE(partials.insert(partial).second);
      EXPECT_GE(partial, item.tile_partial);
      EXPECT_LT(partial, item.tile_partial + item.num_partials);
    }
    ++items_of_counter[item.counter];
  };
  for (const std::vector<AttentionItem>& list : Lists(plan, limits)) {
    for (const AttentionItem& item : list) {
      EXPECT_LE(item.num_virtual, kAttentionSplitRows);
      take(item);
    }
  }
  const int prefill_blocks =
      limits.has_wgmma ? limits.num_sms : static_cast<int>(plan.prefill_items().size()) * limits.num_kv_heads;
  for (const std::vector<AttentionItem>& list : Lists(plan.prefill_items(), prefill_blocks, limits)) {
    for (const AttentionItem& item : list) {
      EXPECT_LE(item.num_virtual, kAttentionPrefillRows);
      take(item);
    }
  }
  for (const AttentionItem& item : plan.split_items()) {
    if (item.num_partials > 1) {
      EXPECT_EQ(items_of_counter[item.counter], item.num_items);
    }
  }
  for (const AttentionRun& run : runs) {
    for (int v = 0; v < run.num_rows * group; ++v) {
      const std::multiset<int>& chunks = seen[{run.slot, v}];
      // The chunks that the row sees; its tile may add some behind it.
      const int own = (run.first_position + v / group) / kAttentionChunk + 1;
      ASSERT_GE(static_cast<int>(chunks.size()), own);
      int expected = 0;
      for (int chunk : chunks) ASSERT_EQ(chunk, expected++) << "slot " << run.slot << ", virtual row " << v;
    }
  }
  EXPECT_TRUE(partials.empty() || *partials.rbegin() < limits.max_partials);
  EXPECT_LE(static_cast<int>(items_of_counter.size()), limits.max_shared_tiles);
}

TEST(AttentionPlan, CoversEveryRowAndChunkOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    AttentionPlanLimits limits = Limits();
    limits.num_kv_heads = std::vector<int>{1, 2, 4, 12}[random() % 4];
    limits.head_dim = std::vector<int>{64, 128, 80}[random() % 3];
    limits.max_partials = std::vector<int>{0, 5, 300, 4096}[random() % 4];
    limits.max_shared_tiles = std::vector<int>{0, 3, 1024}[random() % 3];
    limits.has_wgmma = random() % 2 == 0;
    std::vector<AttentionRun> runs;
    int rows = 0;
    for (int i = 0, count = 1 + random() % 9; i < count; ++i) {
      const int num_rows = random() % 2 == 0 ? 1 : 1 + random() % 700;
      runs.push_back({rows, num_rows, static_cast<int>(random() % 3000), i});
      rows += num_rows;
    }
    AttentionPlan plan(limits);
    plan.Build(runs);
    ExpectCovers(plan, limits, runs);
    EXPECT_LE(static_cast<int>(plan.split_items().size()),
              AttentionPlan::MaxSplitItems(limits, static_cast<int>(runs.size()), rows));
    EXPECT_LE(static_cast<int>(plan.prefill_items().size()),
              AttentionPlan::MaxPrefillItems(limits, static_cast<int>(runs.size()), rows));
    plan.BuildShared(runs, 2);
    ExpectCovers(plan, limits, runs);
  }
}

TEST(AttentionPlan, SharesTheKeysOfFewSequencesAmongBlocks) {
  AttentionPlan plan(Limits());
  plan.Build(DecodeRuns(1, 4096));
  EXPECT_EQ(plan.split_items().size(), 4096u / kAttentionChunk);
  // An item a block.
  plan.Build(DecodeRuns(32, 4096));
  EXPECT_EQ(plan.split_items().size(), 128u);
}

TEST(AttentionPlan, SharesNothingWhereTilesFillTheBlocksEvenly) {
  AttentionPlan plan(Limits());
  plan.Build(DecodeRuns(132, 4096));
  EXPECT_EQ(plan.split_items().size(), 132u);
  plan.Build(DecodeRuns(200, 100));
  EXPECT_EQ(plan.split_items().size(), 200u);
}

TEST(AttentionPlan, BlocksHaveAboutTheSameToDoWhateverTheLengths) {
  std::mt19937 random(9);
  std::vector<AttentionRun> runs;
  int chunks = 0;
  for (int i = 0; i < 48; ++i) {
    const int context = 200 + static_cast<int>(random() % 6000);
    runs.push_back({i, 1, context - 1, i});
    chunks += (context + kAttentionChunk - 1) / kAttentionChunk;
  }
  AttentionPlan plan(Limits());
  plan.Build(runs);
  ExpectCovers(plan, Limits(), runs);
  int most = 0;
  for (const std::vector<AttentionItem>& list : Lists(plan, Limits())) {
    int own = 0;
    for (const AttentionItem& item : list) own += item.chunk_end - item.chunk_begin;
    most = std::max(most, own);
  }
  EXPECT_LE(most, chunks / 132 + 2);
}

TEST(AttentionPlan, ABlockTakesTheNextItemWhereTheFirstOnesEndFirst) {
  AttentionPlanLimits limits = Limits();
  limits.split_blocks = 2 * limits.num_kv_heads;
  limits.one_pass = true;
  AttentionPlan plan(limits);
  std::vector<AttentionRun> runs;
  for (const int context : {200, 3 * kAttentionChunk, 100, kAttentionChunk})
    runs.push_back({static_cast<int>(runs.size()), 1, context - 1, static_cast<int>(runs.size())});
  plan.Build(runs);
  ExpectCovers(plan, limits, runs);
  const std::vector<std::vector<AttentionItem>> lists = Lists(plan, limits);
  ASSERT_EQ(lists.size(), 2u);
  ASSERT_EQ(lists[0].size(), 1u);
  EXPECT_EQ(lists[0][0].table_row, 1);
  EXPECT_EQ(lists[1].size(), 3u);
}

TEST(AttentionPlan, InOnePassABlockWalksAllKeysOfATile) {
  AttentionPlanLimits limits = Limits();
  limits.one_pass = true;
  AttentionPlan plan(limits);
  for (const int count : {1, 32}) {
    plan.Build(DecodeRuns(count, 4096));
    EXPECT_EQ(plan.mode(), AttentionMode::kGeneral);
    ASSERT_EQ(plan.split_items().size(), static_cast<size_t>(count));
    EXPECT_EQ(plan.split_items()[0].chunk_end, 4096 / kAttentionChunk);
    EXPECT_EQ(plan.split_items()[0].num_partials, 1);
  }
}

TEST(AttentionPlan, BoundsTheItemsOfLongContexts) {
  const std::vector<AttentionRun> runs = DecodeRuns(5, 1 << 18);
  AttentionPlan plan(Limits());
  plan.Build(runs);
  ExpectCovers(plan, Limits(), runs);
  EXPECT_LE(plan.split_items().size() * 2, 264u * 8);
  // Cut so that all blocks had work, the last of these tiles would find no partials left and be one item.
  for (const AttentionItem& item : plan.split_items()) {
    EXPECT_GT(item.num_partials, 1);
    EXPECT_LE(item.chunk_end - item.chunk_begin, 256);
  }
}

TEST(AttentionPlan, TakesPrefillForLongRunsOfItsHeadDims) {
  const std::vector<AttentionRun> runs = {{0, 4096, 0, 0}};
  AttentionPlan plan(Limits());
  plan.Build(runs);
  EXPECT_EQ(plan.prefill_items().size(), 4096u * 6 / kAttentionPrefillRows);
  EXPECT_TRUE(plan.split_items().empty());
  AttentionPlanLimits other = Limits();
  other.head_dim = 80;
  AttentionPlan other_plan(other);
  other_plan.Build(runs);
  EXPECT_TRUE(other_plan.prefill_items().empty());
}

TEST(AttentionPlan, TakesPrefillForMiddlingRunsOnlyWhereTheyFillTheCard) {
  AttentionPlan plan(Limits());
  plan.Build({{0, 512, 0, 0}});
  EXPECT_TRUE(plan.prefill_items().empty());
  std::vector<AttentionRun> runs;
  for (int i = 0; i < 8; ++i) runs.push_back({512 * i, 512, 0, i});
  plan.Build(runs);
  EXPECT_TRUE(plan.split_items().empty());
}

TEST(AttentionPlan, ByWgmmaTilesAreSmallWhereTheyAreFew) {
  AttentionPlanLimits limits = Limits();
  limits.has_wgmma = true;
  AttentionPlan plan(limits);
  const std::vector<AttentionRun> chunk = {{0, 512, 3584, 0}};
  plan.Build(chunk);
  EXPECT_EQ(plan.prefill_items().size(), 512u * 6 / kAttentionSmallPrefillRows);
  ExpectCovers(plan, limits, chunk);
  const std::vector<AttentionRun> prompt = {{0, 4096, 0, 0}};
  plan.Build(prompt);
  EXPECT_EQ(plan.prefill_items().size(), 4096u * 6 / kAttentionPrefillRows);
  ExpectCovers(plan, limits, prompt);
}

TEST(AttentionPlan, ByWgmmaBlocksHaveAboutTheSameToDo) {
  AttentionPlanLimits limits = Limits();
  limits.has_wgmma = true;
  AttentionPlan plan(limits);
  plan.Build({{0, 4096, 0, 0}});
  int least = INT32_MAX, most = 0;
  for (const std::vector<AttentionItem>& list : Lists(plan.prefill_items(), limits.num_sms, limits)) {
    int own = 0;
    for (const AttentionItem& item : list) own += item.chunk_end;
    least = std::min(least, own);
    most = std::max(most, own);
  }
  EXPECT_LE(most, least + 6);
}

AttentionPlanLimits ChunkLimits() {
  AttentionPlanLimits limits = Limits();
  limits.chunk_blocks = 132;
  limits.max_unmerged = 8;
  return limits;
}

TEST(AttentionPlan, FewDecodeRowsHaveABlockAChunk) {
  AttentionPlan plan(ChunkLimits());
  const std::vector<AttentionRun> runs = DecodeRuns(8, 1024);
  plan.Build(runs);
  EXPECT_EQ(plan.mode(), AttentionMode::kChunks);
  EXPECT_EQ(plan.split_items().size(), 32u);
  ExpectCovers(plan, Limits(), runs);
  plan.Build(DecodeRuns(64, 257));  // 128 chunks of 2 KV heads are too many
  EXPECT_EQ(plan.mode(), AttentionMode::kGeneral);
  plan.Build({{0, 2, 100, 0}});
  EXPECT_EQ(plan.mode(), AttentionMode::kGeneral);
}

TEST(AttentionPlan, KeysThatAreReadBehindARowAreCutWithItsOwn) {
  AttentionPlan plan(ChunkLimits());
  const std::vector<AttentionRun> runs = {{0, 1, 99, 0, 3000}, {1, 1, 2999, 1, 3000}};
  plan.Build(runs);
  EXPECT_EQ(plan.mode(), AttentionMode::kGeneral);
  ExpectCovers(plan, Limits(), runs);
  int chunks = 0;
  for (const AttentionItem& item : plan.split_items()) {
    if (item.table_row != 0) continue;
    EXPECT_EQ(item.num_keys, 100);
    EXPECT_EQ(item.num_read, 3000);
    chunks += item.chunk_end - item.chunk_begin;
  }
  EXPECT_EQ(chunks, (3000 + kAttentionChunk - 1) / kAttentionChunk);
}

TEST(AttentionPlan, TheChunksOfAnOnlyRowAreLeftToTheMatmulBehindUpToItsLimit) {
  AttentionPlan plan(ChunkLimits());
  for (const int context : {1, 256, 257, 2048}) {
    plan.Build(DecodeRuns(1, context));
    EXPECT_EQ(plan.mode(), AttentionMode::kUnmerged) << context;
    for (const AttentionItem& item : plan.split_items()) {
      EXPECT_EQ(item.num_items, 0);
      EXPECT_EQ(item.chunk_end, item.chunk_begin + 1);
      EXPECT_EQ(item.num_partials, (context + kAttentionChunk - 1) / kAttentionChunk);
      EXPECT_EQ(item.chunk_begin == 0 ? item.tile_partial : item.first_partial, item.chunk_begin);
    }
  }
  plan.Build(DecodeRuns(1, 256), true);
  EXPECT_EQ(plan.mode(), AttentionMode::kChunks);
  plan.Build(DecodeRuns(1, 2049));
  EXPECT_EQ(plan.mode(), AttentionMode::kChunks);
}

}  // namespace
}  // namespace ridge::kernels::cuda
