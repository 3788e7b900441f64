// The KV pool's bookkeeping: which blocks are free, how many readers each of the others has, and which of
// those without a reader are kept because a prefix cache may find them again. Knows nothing of devices or
// sequences.
//
// Threads: engine thread only. Invariant: a block is exactly one of
//   free   no reader, on the free list once
//   owned  one reader or more; it may be kept too
//   idle   no reader, kept: on the idle list once, oldest release first, and taken when the free list is
//   empty
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "worker/backend/step_plan.h"

namespace ridge::worker {

// Blocks that hold this many tokens.
constexpr int32_t BlocksForTokens(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  // What Allocate can give: free and idle blocks.
  int32_t available_blocks() const { return static_cast<int32_t>(free_.size()) + num_idle_; }
  int32_t idle_blocks() const { return num_idle_; }
  int32_t ref_count(BlockId block) const { return blocks_[block].readers; }

  // Called with the kept blocks that an Allocate takes: what they held is lost.
  void OnEviction(std::function<void(absl::Span<const BlockId>)> listener) {
    on_eviction_ = std::move(listener);
  }

  // Takes `count` blocks with one reader each: free ones first, then those idle for longest. Requires
  // count <= available_blocks().
  std::vector<BlockId> Allocate(int32_t count);

  // The same for consecutive blocks that are free; false, with nothing taken, where no such run is. Linear in
  // the number of blocks.
  bool AllocateRun(int32_t count, std::vector<BlockId>* taken);

  // One reader more for an owned or idle block.
  void AddReader(BlockId block);

  // One reader less for each; a block without readers is free, or idle where it is kept. Requires that each
  // is owned. The last of them becomes idle first: of a sequence's blocks the tail is evicted before what it
  // continues.
  void Release(absl::Span<const BlockId> blocks);

  // From now on an owned block becomes idle rather than free.
  void Keep(BlockId block);

  // No longer: an idle block is free from now on.
  void Discard(BlockId block);

  // Asks memory for what is known of a block.
  void Prefetch(BlockId block) const { __builtin_prefetch(&blocks_[block]); }

  // Aborts where the invariant does not hold, or where `readers`, by block, is not what the readers count
  // themselves. Linear in the number of blocks.
  void CheckInvariant(absl::Span<const int32_t> readers) const;

 private:
  struct Block {
    int32_t readers = 0;
    bool kept = false;
    uint32_t releases = 0;  // how often it became idle
  };
  // A block that became idle. One that was taken meanwhile stands in the line no less, and is passed over.
  struct Idle {
    BlockId block;
    uint32_t releases;
  };

  void AppendIdle(BlockId block);
  BlockId TakeIdle();
  bool IsIdle(const Idle& idle) const {
    const Block& state = blocks_[idle.block];
    return state.readers == 0 && state.kept && state.releases == idle.releases;
  }

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block freed last is warm and goes first
  std::deque<Idle> idle_;      // released first, first
  int32_t num_idle_ = 0;       // of them, without those that are passed over
  std::function<void(absl::Span<const BlockId>)> on_eviction_ = [](absl::Span<const BlockId>) {};
};

}  // namespace ridge::worker
