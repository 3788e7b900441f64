#include "worker/memory/prefix_cache.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> Tokens(int32_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Publishes the whole blocks of `tokens`.
void Publish(PrefixCache* cache, const std::string& salt, const std::vector<TokenId>& tokens,
             const std::vector<BlockId>& blocks) {
  const size_t count = tokens.size() / kBlockTokens;
  cache->Publish({0, salt}, absl::MakeConstSpan(tokens).first(count * kBlockTokens),
                 absl::MakeConstSpan(blocks).first(count));
}

TEST(PrefixCache, FindsTheWholeBlocksThatTwoTextsShare) {
  BlockPool pool(8);
  PrefixCache cache(&pool);
  const auto blocks = pool.Allocate(3);
  Publish(&cache, "", Tokens(48), blocks);
  EXPECT_EQ(cache.cached_blocks(), 3);

  auto other = Tokens(48);
  other[40] = 7;  // differs in the third block
  EXPECT_THAT(cache.Find("", other).blocks, ElementsAre(blocks[0], blocks[1]));
  EXPECT_EQ(pool.ref_count(blocks[0]), 2);
  EXPECT_EQ(pool.ref_count(blocks[2]), 1);
  EXPECT_THAT(cache.Find("", Tokens(31)).blocks, ElementsAre(blocks[0]));
  EXPECT_THAT(cache.Find("", Tokens(15)).blocks, IsEmpty());
}

TEST(PrefixCache, TheSameTokensAfterOtherTokensAreAnotherBlock) {
  BlockPool pool(8);
  PrefixCache cache(&pool);
  const auto blocks = pool.Allocate(2);
  Publish(&cache, "", Tokens(32), blocks);
  EXPECT_THAT(cache.Find("", Tokens(16, 16)).blocks, IsEmpty());
}

TEST(PrefixCache, SharesNothingBetweenSalts) {
  BlockPool pool(8);
  PrefixCache cache(&pool);
  const auto mine = pool.Allocate(1);
  const auto theirs = pool.Allocate(1);
  Publish(&cache, "mine", Tokens(16), mine);
  EXPECT_THAT(cache.Find("", Tokens(16)).blocks, IsEmpty());
  EXPECT_THAT(cache.Find("theirs", Tokens(16)).blocks, IsEmpty());
  Publish(&cache, "theirs", Tokens(16), theirs);
  EXPECT_THAT(cache.Find("mine", Tokens(16)).blocks, ElementsAre(mine[0]));
  EXPECT_THAT(cache.Find("theirs", Tokens(16)).blocks, ElementsAre(theirs[0]));
}

TEST(PrefixCache, AnEvictedBlockIsNotFoundAgainNorWhatCameAfterIt) {
  BlockPool pool(3);
  PrefixCache cache(&pool);
  const auto blocks = pool.Allocate(2);
  Publish(&cache, "", Tokens(32), blocks);
  pool.Release(blocks);
  const auto fresh = pool.Allocate(2);  // the free one, and the tail
  EXPECT_EQ(cache.evictions(), 1);
  EXPECT_THAT(cache.Find("", Tokens(32)).blocks, ElementsAre(blocks[0]));
}

// A text of another's first block; its own goes on from there, and has two ends.
TEST(PrefixCache, WithAnEvictedBlockAllThatContinuesItIsGivenUp) {
  BlockPool pool(6);
  PrefixCache cache(&pool);
  const auto evicted = pool.Allocate(1);
  const auto own = pool.Allocate(3);
  const auto other = pool.Allocate(1);
  Publish(&cache, "", Tokens(16), evicted);
  pool.Release(evicted);
  const ChainNode first = cache.Publish({0, ""}, Tokens(48), own);
  std::vector<TokenId> tokens = Tokens(16);
  for (TokenId id : Tokens(16, 100)) tokens.push_back(id);
  const ChainNode second = cache.Publish({0, ""}, tokens, {pool.Allocate(1)[0], other[0]});
  EXPECT_EQ(cache.cached_blocks(), 4);
  EXPECT_TRUE(cache.IsReachable(first) && cache.IsReachable(second));
  pool.Release(other);  // the last to become idle, hence the last to be evicted
  EXPECT_EQ(pool.idle_blocks(), 2);

  EXPECT_THAT(pool.Allocate(1), ElementsAre(evicted[0]));
  EXPECT_FALSE(cache.IsReachable(first) || cache.IsReachable(second));
  EXPECT_EQ(cache.cached_blocks(), 0);
  EXPECT_EQ(cache.evictions(), 4);
  EXPECT_EQ(pool.idle_blocks(), 0);
  EXPECT_THAT(pool.Allocate(1), ElementsAre(other[0]));  // it is free
  // Its owner publishes anew.
  Publish(&cache, "", Tokens(48), own);
  EXPECT_EQ(cache.Find("", Tokens(48)).blocks, own);
  const std::vector<int32_t> readers = {1, 2, 2, 2, 1, 1};
  pool.CheckInvariant(readers);
}

TEST(PrefixCache, LongTextsArePublishedInAnyPieces) {
  constexpr int32_t kBlocks = 200;
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    BlockPool pool(4 * kBlocks);
    PrefixCache cache(&pool);
    // Two texts that part at a random block, each in pieces.
    const int32_t shared = static_cast<int32_t>(random() % kBlocks);
    std::vector<std::vector<TokenId>> texts(2, Tokens(kBlocks * kBlockTokens));
    for (size_t i = static_cast<size_t>(shared * kBlockTokens); i < texts[1].size(); ++i) texts[1][i] += 9;
    std::vector<std::vector<BlockId>> blocks;
    for (const std::vector<TokenId>& text : texts) {
      blocks.push_back(pool.Allocate(kBlocks));
      ChainNode node{0, "salt"};
      for (size_t begin = 0; begin < kBlocks;) {
        const size_t count = std::min<size_t>(1 + random() % 90, kBlocks - begin);
        node =
            cache.Publish(node, absl::MakeConstSpan(text).subspan(begin * kBlockTokens, count * kBlockTokens),
                          absl::MakeConstSpan(blocks.back()).subspan(begin, count));
        begin += count;
      }
    }
    EXPECT_EQ(cache.cached_blocks(), 2 * kBlocks - shared);
    EXPECT_EQ(cache.Find("salt", texts[0]).blocks, blocks[0]);
    std::vector<BlockId> expected(blocks[0].begin(), blocks[0].begin() + shared);
    expected.insert(expected.end(), blocks[1].begin() + shared, blocks[1].end());
    EXPECT_EQ(cache.Find("salt", texts[1]).blocks, expected);
  }
}

TEST(PrefixCache, OfTwoEqualBlocksTheFirstIsKept) {
  BlockPool pool(4);
  PrefixCache cache(&pool);
  const auto first = pool.Allocate(1);
  const auto second = pool.Allocate(2);
  Publish(&cache, "", Tokens(16), first);
  Publish(&cache, "", Tokens(32), second);  // its second block continues the first's chain
  EXPECT_EQ(cache.cached_blocks(), 2);
  EXPECT_THAT(cache.Find("", Tokens(32)).blocks, ElementsAre(first[0], second[1]));
}

}  // namespace
}  // namespace ridge::worker
