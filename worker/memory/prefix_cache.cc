#include "worker/memory/prefix_cache.h"

#include <algorithm>

#include "common/check.h"

namespace ridge::worker {

PrefixCache::PrefixCache(BlockPool* pool) : pool_(pool), keys_(pool->num_blocks()), ids_(pool->num_blocks()) {
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
    key.parent = {it->second.id, {}, it->second.block};
  }
  match.node = std::move(key.parent);
  return match;
}

ChainNode PrefixCache::Publish(const ChainNode& parent, absl::Span<const TokenId> tokens, BlockId block) {
  RIDGE_CHECK(tokens.size() == kBlockTokens);
  Key key{parent, {}};
  std::copy(tokens.begin(), tokens.end(), key.tokens.begin());
  const auto [it, inserted] = index_.try_emplace(key, Entry{block, next_id_});
  const ChainNode node{it->second.id, {}, it->second.block};
  if (inserted) {
    // It may be known as the continuation of a chain that is gone.
    if (ids_[block] != 0) index_.erase(keys_[block]);
    ids_[block] = next_id_++;
    keys_[block] = std::move(key);
    pool_->Keep(block);
  }
  return node;
}

bool PrefixCache::IsReachable(const ChainNode& node) const {
  const ChainNode* at = &node;
  for (; at->id != 0; at = &keys_[at->block].parent) {
    if (ids_[at->block] != at->id) return false;
  }
  return true;
}

void PrefixCache::Forget(BlockId block) {
  index_.erase(keys_[block]);
  ids_[block] = 0;
  ++evictions_;
}

}  // namespace ridge::worker
