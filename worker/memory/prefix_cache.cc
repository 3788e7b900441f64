#include "worker/memory/prefix_cache.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "common/check.h"

namespace ridge::worker {

PrefixCache::PrefixCache(BlockPool* pool)
    : pool_(pool), nodes_(pool->num_blocks()), salts_(pool->num_blocks()) {
  pool->OnEviction([this](absl::Span<const BlockId> blocks) { Forget(blocks); });
}

PrefixCache::Match PrefixCache::Find(const std::string& salt, absl::Span<const TokenId> tokens) {
  Match match;
  match.node.salt = salt;
  for (size_t begin = 0; begin + kBlockTokens <= tokens.size(); begin += kBlockTokens) {
    const absl::Span<const TokenId> next = tokens.subspan(begin, kBlockTokens);
    const auto it = index_.find(HashOf(match.node, next));
    if (it == index_.end() || !Continues(it->second, match.node, next)) break;
    pool_->AddReader(it->second);
    match.blocks.push_back(it->second);
    match.node = {nodes_[it->second].id, {}, it->second};
  }
  return match;
}

ChainNode PrefixCache::Publish(const ChainNode& parent, absl::Span<const TokenId> tokens, BlockId block) {
  RIDGE_CHECK(tokens.size() == kBlockTokens);
  const uint64_t hash = HashOf(parent, tokens);
  const auto [it, inserted] = index_.try_emplace(hash, block);
  if (!inserted) {
    const BlockId known = it->second;
    if (Continues(known, parent, tokens)) return {nodes_[known].id, {}, known};
    return {next_id_++, {}, -1};  // equal hashes: nothing is found by this node, or through it
  }
  Node& node = nodes_[block];
  // It may be known as the continuation of a chain that is gone.
  if (node.id != 0) index_.erase(node.hash);
  node.hash = hash;
  node.id = next_id_++;
  node.parent = parent.id;
  node.parent_block = parent.block;
  std::copy(tokens.begin(), tokens.end(), node.tokens.begin());
  if (parent.id == 0) salts_[block] = parent.salt;
  pool_->Keep(block);
  return {node.id, {}, block};
}

bool PrefixCache::IsReachable(const ChainNode& node) const {
  uint64_t id = node.id;
  for (BlockId block = node.block; id != 0; block = nodes_[block].parent_block) {
    if (block < 0 || nodes_[block].id != id) return false;
    id = nodes_[block].parent;
  }
  return true;
}

uint64_t PrefixCache::HashOf(const ChainNode& parent, absl::Span<const TokenId> tokens) {
  return absl::HashOf(parent.id, parent.id == 0 ? absl::string_view(parent.salt) : absl::string_view(),
                      tokens);
}

bool PrefixCache::Continues(BlockId block, const ChainNode& parent, absl::Span<const TokenId> tokens) const {
  const Node& node = nodes_[block];
  return node.parent == parent.id && std::equal(tokens.begin(), tokens.end(), node.tokens.begin()) &&
         (parent.id != 0 || salts_[block] == parent.salt);
}

void PrefixCache::Prefetch(absl::Span<const BlockId> blocks) const {
  for (BlockId block : blocks) {
    __builtin_prefetch(&nodes_[block]);
    __builtin_prefetch(&nodes_[block].tokens[kBlockTokens - 1]);
  }
}

void PrefixCache::Forget(absl::Span<const BlockId> blocks) {
  // The oldest blocks have left the caches: what is read of them is asked for together.
  for (BlockId block : blocks) __builtin_prefetch(&nodes_[block]);
  for (BlockId block : blocks) index_.prefetch(nodes_[block].hash);
  for (BlockId block : blocks) {
    index_.erase(nodes_[block].hash);
    nodes_[block].id = 0;
  }
  evictions_ += static_cast<int64_t>(blocks.size());
}

}  // namespace ridge::worker
