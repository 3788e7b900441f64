// Finds the KV blocks of a prompt's beginning that an earlier sequence left behind.
//
// A full block is known by the chain of token ids that leads up to its end, and by the salt of who may share
// it. A chain is a path of nodes: each names its parent and holds its own block's ids. A look-up compares
// these ids (a hash only finds the candidate), so that a hit is never another text's memory. What a block
// holds depends on the tokens before its end alone, and so a hit gives the bits that computing it again would
// give. With an evicted block all that continues it is forgotten, which nobody could find any more.
//
// Threads: engine thread only. Ownership: the pool outlives the cache, which listens to its evictions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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
  bool IsReachable(const ChainNode& node) const { return node.id == 0 || nodes_[node.block].id == node.id; }

  // Makes full blocks, of kBlockTokens of `tokens` each, findable as the continuation of `parent`, which is
  // reachable; to be called after the step that wrote them was collected, while they are owned. Where the
  // same continuation is there already, the chain goes on from that node, and the block is not kept. Returns
  // the last block's node.
  ChainNode Publish(const ChainNode& parent, absl::Span<const TokenId> tokens,
                    absl::Span<const BlockId> blocks);

  // Asks memory for what Publish will write of a block.
  void Prefetch(BlockId block) const;

  int64_t cached_blocks() const { return cached_blocks_; }
  int64_t evictions() const { return evictions_; }

 private:
  // What a kept block holds; two lines of the processor's caches.
  struct alignas(64) Node {
    uint64_t id = 0;  // 0: the block is not kept
    uint64_t parent = 0;
    BlockId parent_block = -1;
    // Most nodes have one continuation: it is known here. Others are found by their hash, as chains' first
    // blocks are, and stand in a list, the last one that came first.
    BlockId child = -1;
    BlockId indexed_child = -1;
    BlockId next = -1;  // in its parent's list
    BlockId previous = -1;
    bool is_indexed = false;
    uint64_t hash = 0;  // of parent, salt and tokens, where it is indexed
    std::array<TokenId, kBlockTokens> tokens;
  };
  // Of the open-addressed index: a place holds a block, at the end of its hash or as soon after it as there
  // was room, so that all of them stand in a row.
  struct Place {
    uint32_t tag = 0;    // the end of the hash
    BlockId block = -1;  // -1: nothing
  };

  size_t PlaceOf(uint64_t hash) const { return hash & (index_.size() - 1); }
  size_t After(size_t place) const { return (place + 1) & (index_.size() - 1); }
  // The kept block that continues `parent`, which is kept too, with these tokens; -1: none.
  BlockId Lookup(const ChainNode& parent, const TokenId* tokens) const;
  void Insert(const ChainNode& parent, const TokenId* tokens, BlockId block);
  // What continues a node.
  void Link(BlockId block);
  void Unlink(BlockId block);
  // Forgets a block and all that continues it, which is added to branch_.
  void EraseBranch(BlockId block);
  void AddToIndex(BlockId block);
  void RemoveFromIndex(BlockId block);
  void Forget(absl::Span<const BlockId> blocks);

  BlockPool* const pool_;
  const uint64_t secret_;           // of the hashes; what is found does not depend on it
  uint64_t next_id_ = 1;            // never reused: what continued an evicted block is not found again
  std::vector<Place> index_;        // a power of two, at least twice as many as there are blocks
  std::vector<Node> nodes_;         // of each block
  std::vector<std::string> salts_;  // of the blocks that begin a chain
  std::vector<BlockId> branch_;     // that Forget has erased
  int64_t cached_blocks_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace ridge::worker
