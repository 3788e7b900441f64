#include "kernels/cuda/attention_plan.h"

#include <algorithm>

#include "kernels/order.h"

namespace ridge::kernels::cuda {
namespace {

// Measured on an H200, head_dim 128: one chunk of keys in a block.
constexpr double kSplitChunkUs = 2.0;    // AttentionSplit, 16 virtual rows, all blocks of an SM busy
constexpr double kPrefillChunkUs = 4.0;  // AttentionPrefill, 128 virtual rows

// Sharing costs about this much: a block may have so much more than its part before tiles are shared.
constexpr double kBalanced = 1.1;
// Of a shared plan, so that blocks end together without an item for every chunk of a long context.
constexpr int64_t kItemsPerBlock = 16;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int32_t Chunks(int64_t keys) {
  return static_cast<int32_t>(CeilDiv(keys, kAttentionChunk));
}

}  // namespace

void AttentionPlan::Build(const std::vector<AttentionRun>& runs) {
  // Unshared tiles need no partials: they stay so where that balances.
  BuildShared(runs, INT32_MAX);
  int64_t chunks = 0;
  loads_.assign(static_cast<size_t>(limits_.split_blocks), 0);
  size_t block = 0;
  for (const AttentionItem& item : split_) {
    for (int32_t head = 0; head < limits_.num_kv_heads; ++head) {
      loads_[block] += item.chunk_end;
      chunks += item.chunk_end;
      block = block + 1 == loads_.size() ? 0 : block + 1;
    }
  }
  const int64_t longest = *std::max_element(loads_.begin(), loads_.end());
  const int64_t ideal = CeilDiv(chunks, limits_.split_blocks);
  if (static_cast<double>(longest) <= kBalanced * static_cast<double>(ideal)) return;
  BuildShared(runs, static_cast<int32_t>(std::max<int64_t>(1, chunks / limits_.split_blocks / kItemsPerBlock)));
}

void AttentionPlan::BuildShared(const std::vector<AttentionRun>& runs, int32_t chunks_per_item) {
  split_.clear();
  prefill_.clear();
  partials_ = 0;
  shared_tiles_ = 0;
  for (const AttentionRun& run : runs) {
    if (PrefersPrefill(run)) {
      AddPrefill(run);
    } else {
      AddSplit(run, chunks_per_item);
    }
  }
  // The longest first: what comes last should be short.
  std::stable_sort(prefill_.begin(), prefill_.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return a.chunk_end > b.chunk_end;
  });
}

int64_t AttentionPlan::SplitTiles(const AttentionRun& run) const {
  return CeilDiv(int64_t{run.num_rows} * Group(), kAttentionSplitRows);
}

// Compares the two kernels' times for the run alone on the card.
bool AttentionPlan::PrefersPrefill(const AttentionRun& run) const {
  if (limits_.head_dim != 64 && limits_.head_dim != 128) return false;
  const int64_t virtual_rows = int64_t{run.num_rows} * Group();
  if (virtual_rows < kAttentionPrefillRows / 2) return false;
  const int64_t chunks = Chunks(run.first_position + run.num_rows);
  const int64_t blocks = CeilDiv(virtual_rows, kAttentionPrefillRows) * limits_.num_kv_heads;
  const double prefill_us = static_cast<double>(CeilDiv(blocks, limits_.num_sms) * chunks) * kPrefillChunkUs;
  const int64_t split_items = SplitTiles(run) * limits_.num_kv_heads * chunks;
  const double split_us = static_cast<double>(CeilDiv(split_items, limits_.split_blocks)) * kSplitChunkUs;
  return prefill_us <= split_us;
}

AttentionItem AttentionPlan::MakeItem(const AttentionRun& run, int32_t first_virtual, int32_t tile_rows) const {
  AttentionItem item = {};
  item.first_row = run.first_row;
  item.first_position = run.first_position;
  item.first_virtual = first_virtual;
  item.num_virtual = std::min(tile_rows, run.num_rows * Group() - first_virtual);
  item.table_row = run.slot;
  item.num_keys = run.first_position + (first_virtual + item.num_virtual - 1) / Group() + 1;
  item.chunk_end = Chunks(item.num_keys);
  item.num_partials = 1;
  item.num_items = 1;
  return item;
}

void AttentionPlan::AddPrefill(const AttentionRun& run) {
  for (int32_t v = 0; v < run.num_rows * Group(); v += kAttentionPrefillRows)
    prefill_.push_back(MakeItem(run, v, kAttentionPrefillRows));
}

void AttentionPlan::AddSplit(const AttentionRun& run, int32_t chunks_per_item) {
  for (int32_t v = 0; v < run.num_rows * Group(); v += kAttentionSplitRows) {
    AttentionItem item = MakeItem(run, v, kAttentionSplitRows);
    const int32_t chunks = item.chunk_end;
    const int32_t others = chunks - std::min(chunks, chunks_per_item);  // chunks that get partials of their own
    if (others == 0 || partials_ + others + 1 > limits_.max_partials ||
        shared_tiles_ == limits_.max_shared_tiles) {
      split_.push_back(item);
      continue;
    }
    item.tile_partial = partials_;
    item.num_partials = others + 1;
    item.num_items = static_cast<int32_t>(CeilDiv(chunks, chunks_per_item));
    item.counter = shared_tiles_++;
    for (int32_t begin = 0; begin < chunks; begin += chunks_per_item) {
      item.chunk_begin = begin;
      item.chunk_end = std::min(begin + chunks_per_item, chunks);
      item.first_partial = begin == 0 ? partials_ : partials_ + 1 + begin - chunks_per_item;
      split_.push_back(item);
    }
    partials_ += item.num_partials;
  }
}

int32_t AttentionPlan::MaxSplitItems(const AttentionPlanLimits& limits, int32_t max_runs, int32_t max_rows) {
  const int64_t group = limits.num_heads / limits.num_kv_heads;
  // A tile each, at most one begun tile a run more than the rows fill; sharing adds at most an item a block, and
  // a partial each.
  const int64_t tiles = max_rows * group / kAttentionSplitRows + max_runs;
  return static_cast<int32_t>(tiles + limits.max_partials);
}

int32_t AttentionPlan::MaxPrefillItems(const AttentionPlanLimits& limits, int32_t max_runs, int32_t max_rows) {
  const int64_t group = limits.num_heads / limits.num_kv_heads;
  return static_cast<int32_t>(max_rows * group / kAttentionPrefillRows + max_runs);
}

std::string AttentionPlan::ToString() const {
  return std::to_string(prefill_.size()) + " prefill items, " + std::to_string(split_.size()) + " split items, " +
         std::to_string(shared_tiles_) + " tiles shared by means of " + std::to_string(partials_) + " partials";
}

}  // namespace ridge::kernels::cuda
