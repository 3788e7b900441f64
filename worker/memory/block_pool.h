// The KV pool's bookkeeping: which blocks are free and how many readers each of the others has. Knows nothing of devices
// or sequences.
//
// Threads: engine thread only. Invariant: a block is free (count 0, in the free list once) or owned (count >= 1).
#pragma once

#include <cstdint>
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

  int32_t num_blocks() const { return static_cast<int32_t>(ref_counts_.size()); }
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }
  int32_t ref_count(BlockId block) const { return ref_counts_[block]; }

  // Takes `count` free blocks with one reference each. Requires count <= free_blocks().
  std::vector<BlockId> Allocate(int32_t count);

  // One reader more for an owned block.
  void AddReference(BlockId block);

  // One reader less for each; a block without readers is free. Requires that each is owned.
  void Release(absl::Span<const BlockId> blocks);

  // Aborts where the invariant does not hold. Linear in the number of blocks.
  void CheckInvariant() const;

 private:
  std::vector<int32_t> ref_counts_;
  std::vector<BlockId> free_;  // a stack: the block freed last is warm and goes first
};

}  // namespace ridge::worker
