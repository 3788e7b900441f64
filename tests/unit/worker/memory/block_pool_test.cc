#include "worker/memory/block_pool.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;

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
  EXPECT_EQ(pool.available_blocks(), 0);
  pool.CheckInvariant({1, 1, 1, 1, 1});
}

TEST(BlockPool, FreesABlockWithItsLastReader) {
  BlockPool pool(1);
  const auto blocks = pool.Allocate(1);
  pool.AddReader(blocks[0]);
  pool.Release(blocks);
  EXPECT_EQ(pool.available_blocks(), 0);
  EXPECT_EQ(pool.ref_count(blocks[0]), 1);
  pool.Release(blocks);
  EXPECT_EQ(pool.available_blocks(), 1);
  EXPECT_EQ(pool.idle_blocks(), 0);
}

TEST(BlockPool, EvictsWhatWasIdleForLongestAndATailBeforeItsHead) {
  BlockPool pool(4);
  std::vector<BlockId> evicted;
  pool.OnEviction(
      [&](absl::Span<const BlockId> blocks) { evicted.insert(evicted.end(), blocks.begin(), blocks.end()); });
  const auto older = pool.Allocate(2);
  const auto newer = pool.Allocate(1);
  for (BlockId block : older) pool.Keep(block);
  pool.Keep(newer[0]);
  pool.Release(older);
  pool.Release(newer);
  EXPECT_EQ(pool.idle_blocks(), 3);
  EXPECT_EQ(pool.available_blocks(), 4);

  pool.Allocate(4);
  EXPECT_EQ(evicted, (std::vector<BlockId>{older[1], older[0], newer[0]}));
  pool.CheckInvariant({1, 1, 1, 1});
}

TEST(BlockPool, AReaderBringsAnIdleBlockBack) {
  BlockPool pool(2);
  const auto blocks = pool.Allocate(1);
  pool.Keep(blocks[0]);
  pool.Release(blocks);
  pool.AddReader(blocks[0]);
  EXPECT_EQ(pool.idle_blocks(), 0);
  EXPECT_EQ(pool.available_blocks(), 1);
  pool.Release(blocks);
  EXPECT_EQ(pool.idle_blocks(), 1);
}

TEST(BlockPoolDeathTest, RefusesMisuse) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.Allocate(3), "available_blocks");
  EXPECT_DEATH(pool.Release(std::vector<BlockId>{0}), "readers");
  EXPECT_DEATH(pool.AddReader(1), "readers");
  EXPECT_DEATH(pool.CheckInvariant({0, 1}), "readers");
}

TEST(BlockPool, KeepsCountOverRandomUse) {
  constexpr int32_t kBlocks = 64;
  BlockPool pool(kBlocks);
  std::mt19937 random(7);
  std::vector<std::vector<BlockId>> owners;
  std::vector<int32_t> readers(kBlocks, 0);
  std::set<BlockId> kept;
  pool.OnEviction([&](absl::Span<const BlockId> blocks) {
    for (BlockId block : blocks) ASSERT_EQ(kept.erase(block), 1u);
  });
  for (int i = 0; i < 10000; ++i) {
    if (random() % 2 == 0 && pool.available_blocks() > 0) {
      owners.push_back(pool.Allocate(1 + random() % pool.available_blocks()));
      for (BlockId block : owners.back()) ++readers[block];
      if (random() % 2 == 0) {
        pool.Keep(owners.back()[0]);
        kept.insert(owners.back()[0]);
      }
    } else if (!kept.empty() && random() % 4 == 0) {
      owners.push_back({*kept.begin()});
      pool.AddReader(*kept.begin());
      ++readers[*kept.begin()];
    } else if (!owners.empty()) {
      std::swap(owners[random() % owners.size()], owners.back());
      for (BlockId block : owners.back()) --readers[block];
      pool.Release(owners.back());
      owners.pop_back();
    }
    pool.CheckInvariant(readers);
  }
}

TEST(BlockPoolTest, GivesConsecutiveBlocksWhereARunIsFree) {
  BlockPool pool(8);
  std::vector<BlockId> first, second, third;
  ASSERT_TRUE(pool.AllocateRun(3, &first));
  EXPECT_THAT(first, ElementsAre(0, 1, 2));
  ASSERT_TRUE(pool.AllocateRun(2, &second));
  ASSERT_TRUE(pool.AllocateRun(3, &third));
  pool.Release(first);
  pool.Release(third);
  EXPECT_EQ(pool.available_blocks(), 6);
  // Six are free, but no four of them stand together.
  EXPECT_FALSE(pool.AllocateRun(4, &first));
  EXPECT_EQ(pool.available_blocks(), 6);
  ASSERT_TRUE(pool.AllocateRun(3, &first));
  EXPECT_THAT(first, ElementsAre(0, 1, 2));
  pool.CheckInvariant(std::vector<int32_t>{1, 1, 1, 1, 1, 0, 0, 0});
}

}  // namespace
}  // namespace ridge::worker
