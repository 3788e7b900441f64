#include "worker/memory/block_pool.h"

#include "common/check.h"

namespace ridge::worker {

BlockPool::BlockPool(int32_t num_blocks) : ref_counts_(num_blocks, 0) {
  free_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

std::vector<BlockId> BlockPool::Allocate(int32_t count) {
  RIDGE_CHECK(count >= 0 && count <= free_blocks());
  std::vector<BlockId> blocks;
  blocks.reserve(count);
  for (int32_t i = 0; i < count; ++i) {
    blocks.push_back(free_.back());
    free_.pop_back();
    ref_counts_[blocks.back()] = 1;
  }
  return blocks;
}

void BlockPool::AddReference(BlockId block) {
  RIDGE_CHECK(ref_counts_[block] > 0);
  ++ref_counts_[block];
}

void BlockPool::Release(absl::Span<const BlockId> blocks) {
  for (BlockId block : blocks) {
    RIDGE_CHECK(block >= 0 && block < num_blocks() && ref_counts_[block] > 0);
    if (--ref_counts_[block] == 0) free_.push_back(block);
  }
}

void BlockPool::CheckInvariant() const {
  std::vector<bool> is_free(ref_counts_.size(), false);
  for (BlockId block : free_) {
    RIDGE_CHECK(!is_free[block]);
    is_free[block] = true;
  }
  for (BlockId block = 0; block < num_blocks(); ++block) RIDGE_CHECK(is_free[block] == (ref_counts_[block] == 0));
}

}  // namespace ridge::worker
