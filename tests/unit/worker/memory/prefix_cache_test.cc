#include "worker/memory/prefix_cache.h"

#include <numeric>
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
  ChainNode node{0, salt};
  for (size_t i = 0; (i + 1) * kBlockTokens <= tokens.size(); ++i) {
    node =
        cache->Publish(node, absl::MakeConstSpan(tokens).subspan(i * kBlockTokens, kBlockTokens), blocks[i]);
  }
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
