#include "worker/memory/block_pool.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

TEST(BlocksForTokens, RoundsUpToWholeBlocks) {
  EXPECT_EQ(BlocksForTokens(0), 0);
  EXPECT_EQ(BlocksForTokens(1), 1);
  EXPECT_EQ(BlocksForTokens(16), 1);
  EXPECT_EQ(BlocksForTokens(17), 2);
}

TEST(BlockPool, GivesDistinctBlocksUntilNoneIsLeft) {
  BlockPool pool(5);
  const auto first = pool.Allocate(2);
  const auto second = pool.Allocate(3);
  std::set<BlockId> all(first.begin(), first.end());
  all.insert(second.begin(), second.end());
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(pool.free_blocks(), 0);
  pool.CheckInvariant();
}

TEST(BlockPool, FreesABlockWithItsLastReader) {
  BlockPool pool(1);
  const auto blocks = pool.Allocate(1);
  pool.AddReference(blocks[0]);
  pool.Release(blocks);
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_EQ(pool.ref_count(blocks[0]), 1);
  pool.Release(blocks);
  EXPECT_EQ(pool.free_blocks(), 1);
}

TEST(BlockPoolDeathTest, RefusesMisuse) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.Allocate(3), "free_blocks");
  EXPECT_DEATH(pool.Release(std::vector<BlockId>{0}), "ref_counts_");
  EXPECT_DEATH(pool.AddReference(1), "ref_counts_");
}

TEST(BlockPool, KeepsCountOverRandomUse) {
  BlockPool pool(64);
  std::mt19937 random(7);
  std::vector<std::vector<BlockId>> owners;
  int32_t owned = 0;
  for (int i = 0; i < 10000; ++i) {
    if (random() % 2 == 0 && pool.free_blocks() > 0) {
      const int32_t count = 1 + random() % pool.free_blocks();
      owners.push_back(pool.Allocate(count));
      owned += count;
    } else if (!owners.empty()) {
      std::swap(owners[random() % owners.size()], owners.back());
      owned -= static_cast<int32_t>(owners.back().size());
      pool.Release(owners.back());
      owners.pop_back();
    }
    ASSERT_EQ(pool.free_blocks(), 64 - owned);
  }
  pool.CheckInvariant();
}

}  // namespace
}  // namespace ridge::worker
