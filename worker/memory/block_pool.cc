#include "worker/memory/block_pool.h"

#include <algorithm>
#include <utility>

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
      block = TakeIdle();
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
  if (state.readers == 0) --num_idle_;
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

void BlockPool::Discard(BlockId block) {
  Block& state = blocks_[block];
  if (!std::exchange(state.kept, false) || state.readers > 0) return;
  --num_idle_;
  free_.push_back(block);
}

void BlockPool::AppendIdle(BlockId block) {
  idle_.push_back({block, ++blocks_[block].releases});
  ++num_idle_;
  // Blocks that are found again and again leave more behind than there are.
  if (idle_.size() > 2 * blocks_.size()) std::erase_if(idle_, [this](const Idle& i) { return !IsIdle(i); });
}

BlockId BlockPool::TakeIdle() {
  constexpr size_t kAhead = 8;
  for (;;) {
    const Idle idle = idle_.front();
    idle_.pop_front();
    if (idle_.size() > kAhead) Prefetch(idle_[kAhead].block);
    if (!IsIdle(idle)) continue;
    --num_idle_;
    return idle.block;
  }
}

void BlockPool::CheckInvariant(absl::Span<const int32_t> readers) const {
  RIDGE_CHECK(readers.size() == blocks_.size());
  std::vector<int32_t> listed(blocks_.size(), 0);
  for (BlockId block : free_) {
    RIDGE_CHECK(!blocks_[block].kept);
    ++listed[block];
  }
  int32_t idle = 0;
  for (const Idle& entry : idle_) {
    if (!IsIdle(entry)) continue;
    ++idle;
    ++listed[entry.block];
  }
  RIDGE_CHECK(idle == num_idle_);
  for (BlockId block = 0; block < num_blocks(); ++block) {
    RIDGE_CHECK(blocks_[block].readers == readers[block]);
    RIDGE_CHECK(listed[block] == (readers[block] == 0 ? 1 : 0));
  }
}

}  // namespace ridge::worker
