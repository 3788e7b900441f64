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
  BlockId block = -1;  // that holds it; -1 after the beginning: it is not findable
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

  // Asks memory for what Publish writes of these blocks, which nobody may have looked at for long.
  void Prefetch(absl::Span<const BlockId> blocks) const;

  int64_t cached_blocks() const { return static_cast<int64_t>(index_.size()); }
  int64_t evictions() const { return evictions_; }

 private:
  // What a kept block holds.
  struct Node {
    uint64_t hash = 0;  // of parent, salt and tokens
    uint64_t id = 0;    // 0: the block is not kept
    uint64_t parent = 0;
    BlockId parent_block = -1;
    std::array<TokenId, kBlockTokens> tokens;
  };

  static uint64_t HashOf(const ChainNode& parent, absl::Span<const TokenId> tokens);
  bool Continues(BlockId block, const ChainNode& parent, absl::Span<const TokenId> tokens) const;
  void Forget(absl::Span<const BlockId> blocks);

  BlockPool* const pool_;
  uint64_t next_id_ = 1;  // never reused: what continued an evicted block is not found again
  absl::flat_hash_map<uint64_t, BlockId> index_;  // of kept blocks, by hash
  std::vector<Node> nodes_;                       // of each block
  std::vector<std::string> salts_;                // of the blocks that begin a chain
  int64_t evictions_ = 0;
};

}  // namespace ridge::worker
