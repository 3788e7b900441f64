#include "worker/memory/prefix_cache.h"

#include <algorithm>

#include "common/check.h"

namespace ridge::worker {

PrefixCache::PrefixCache(BlockPool* pool) : pool_(pool), keys_(pool->num_blocks()) {
  pool->OnEviction([this](BlockId block) { Forget(block); });
}

PrefixCache::Match PrefixCache::Find(const std::string& salt, absl::Span<const TokenId> tokens) {
  Match match;
  Key key{{0, salt}, {}};
  for (size_t begin = 0; begin + kBlockTokens <= tokens.size(); begin += kBlockTokens) {
    std::copy_n(tokens.begin() + begin, kBlockTokens, key.tokens.begin());
    const auto it = index_.find(key);
    if (it == index_.end()) break;
    pool_->AddReader(it->second.block);
    match.blocks.push_back(it->second.block);
    key.parent = {it->second.id, {}};
  }
  match.node = std::move(key.parent);
  return match;
}

ChainNode PrefixCache::Publish(const ChainNode& parent, absl::Span<const TokenId> tokens, BlockId block) {
  RIDGE_CHECK(tokens.size() == kBlockTokens);
  Key key{parent, {}};
  std::copy(tokens.begin(), tokens.end(), key.tokens.begin());
  const auto [it, inserted] = index_.try_emplace(key, Entry{block, next_id_});
  if (inserted) {
    ++next_id_;
    keys_[block] = std::move(key);
    pool_->Keep(block);
  }
  return {it->second.id, {}};
}

void PrefixCache::Forget(BlockId block) {
  index_.erase(keys_[block]);
  ++evictions_;
}

}  // namespace ridge::worker
