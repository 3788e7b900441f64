// Finds the KV blocks of a prompt's beginning that an earlier sequence left behind.
//
// A full block is known by the chain of token ids that leads up to its end, and by the salt of who may share
// it. A chain is a path of nodes: each names its parent and holds its own block's ids. A look-up compares
// these ids (the hash only finds the candidate), so that a hit is never another text's memory. What a block
// holds depends on the tokens before its end alone, and so a hit gives the bits that computing it again would
// give.
//
// Threads: engine thread only. Ownership: the pool outlives the cache, which listens to its evictions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "worker/backend/step_plan.h"
#include "worker/memory/block_pool.h"

namespace ridge::worker {

// Where a chain stands: before its first block, where only the salt tells it from others, or after the block
// that `id` names. Carried on by Find and Publish.
struct ChainNode {
  uint64_t id = 0;     // 0: before the first block
  std::string salt;    // empty after it
  BlockId block = -1;  // that holds it

  bool operator==(const ChainNode&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const ChainNode& node) {
    return H::combine(std::move(state), node.id, node.salt);
  }
};

class PrefixCache {
 public:
  explicit PrefixCache(BlockPool* pool);

  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Match {
    std::vector<BlockId> blocks;  // each with one reader more
    ChainNode node;               // of the last one
  };
  // The longest chain of whole blocks along `tokens`, from their beginning.
  Match Find(const std::string& salt, absl::Span<const TokenId> tokens);

  // Whether a look-up still finds the way to this node: no block of its chain was evicted.
  bool IsReachable(const ChainNode& node) const;

  // Makes a full block of kBlockTokens tokens findable as the continuation of `parent`; to be called after
  // the step that wrote it was collected, while it is owned. Returns the chain's new node: an older one where
  // the same continuation is there already, and the block is then not kept.
  ChainNode Publish(const ChainNode& parent, absl::Span<const TokenId> tokens, BlockId block);

  int64_t cached_blocks() const { return static_cast<int64_t>(index_.size()); }
  int64_t evictions() const { return evictions_; }

 private:
  struct Key {
    ChainNode parent;
    std::array<TokenId, kBlockTokens> tokens;

    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H state, const Key& key) {
      return H::combine(std::move(state), key.parent, key.tokens);
    }
  };
  struct Entry {
    BlockId block;
    uint64_t id;
  };

  void Forget(BlockId block);

  BlockPool* const pool_;
  uint64_t next_id_ = 1;  // never reused: what continued an evicted block is not found again
  absl::flat_hash_map<Key, Entry> index_;
  std::vector<Key> keys_;      // of each kept block
  std::vector<uint64_t> ids_;  // of the node that each kept block holds, 0 for others
  int64_t evictions_ = 0;
};

}  // namespace ridge::worker
