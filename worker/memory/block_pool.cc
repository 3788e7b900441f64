#include "worker/memory/block_pool.h"

#include <algorithm>

#include "common/check.h"

namespace ridge::worker {

BlockPool::BlockPool(int32_t num_blocks) : blocks_(num_blocks) {
  free_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

std::vector<BlockId> BlockPool::Allocate(int32_t count) {
  RIDGE_CHECK(count >= 0 && count <= available_blocks());
  std::vector<BlockId> taken;
  taken.reserve(count);
  const size_t num_free = std::min(free_.size(), static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    BlockId block;
    if (!free_.empty()) {
      block = free_.back();
      free_.pop_back();
    } else {
      block = idle_head_;
      UnlinkIdle(block);
      blocks_[block].kept = false;
    }
    blocks_[block].readers = 1;
    taken.push_back(block);
  }
  if (taken.size() > num_free) on_eviction_(absl::MakeConstSpan(taken).subspan(num_free));
  return taken;
}

bool BlockPool::AllocateRun(int32_t count, std::vector<BlockId>* taken) {
  BlockId begin = 0;
  BlockId end = 0;
  for (; end < num_blocks() && end - begin < count; ++end) {
    if (blocks_[end].readers > 0 || blocks_[end].kept) begin = end + 1;
  }
  if (end - begin < count) return false;
  std::erase_if(free_, [&](BlockId block) { return block >= begin && block < end; });
  taken->clear();
  for (BlockId block = begin; block < end; ++block) {
    blocks_[block].readers = 1;
    taken->push_back(block);
  }
  return true;
}

void BlockPool::AddReader(BlockId block) {
  Block& state = blocks_[block];
  RIDGE_CHECK(state.readers > 0 || state.kept);
  if (state.readers == 0) UnlinkIdle(block);
  ++state.readers;
}

void BlockPool::Release(absl::Span<const BlockId> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    RIDGE_CHECK(*it >= 0 && *it < num_blocks() && blocks_[*it].readers > 0);
    if (--blocks_[*it].readers > 0) continue;
    if (blocks_[*it].kept) {
      AppendIdle(*it);
    } else {
      free_.push_back(*it);
    }
  }
}

void BlockPool::Keep(BlockId block) {
  RIDGE_CHECK(blocks_[block].readers > 0);
  blocks_[block].kept = true;
}

void BlockPool::AppendIdle(BlockId block) {
  blocks_[block].previous = idle_tail_;
  blocks_[block].next = -1;
  (idle_tail_ >= 0 ? blocks_[idle_tail_].next : idle_head_) = block;
  idle_tail_ = block;
  ++num_idle_;
}

void BlockPool::UnlinkIdle(BlockId block) {
  const Block& state = blocks_[block];
  (state.previous >= 0 ? blocks_[state.previous].next : idle_head_) = state.next;
  (state.next >= 0 ? blocks_[state.next].previous : idle_tail_) = state.previous;
  --num_idle_;
}

void BlockPool::CheckInvariant(absl::Span<const int32_t> readers) const {
  RIDGE_CHECK(readers.size() == blocks_.size());
  std::vector<int32_t> listed(blocks_.size(), 0);
  for (BlockId block : free_) {
    RIDGE_CHECK(!blocks_[block].kept);
    ++listed[block];
  }
  int32_t idle = 0;
  for (BlockId block = idle_head_; block >= 0; block = blocks_[block].next) {
    RIDGE_CHECK(blocks_[block].kept && ++idle <= num_idle_);
    ++listed[block];
  }
  RIDGE_CHECK(idle == num_idle_);
  for (BlockId block = 0; block < num_blocks(); ++block) {
    RIDGE_CHECK(blocks_[block].readers == readers[block]);
    RIDGE_CHECK(listed[block] == (readers[block] == 0 ? 1 : 0));
  }
}

}  // namespace ridge::worker
