#include "kernels/cuda/attention_plan.h"

#include <algorithm>

#include "kernels/order.h"

namespace ridge::kernels::cuda {
namespace {

// Measured on an H200, head_dim 128, in a card that is full: what a chunk of keys takes a block, what an item
// takes besides, and what the fold of tiles that are shared adds to the whole.
constexpr double kSplitChunkUs = 7.5;        // AttentionSplit
constexpr double kSplitCachedChunkUs = 6.3;  // where many tiles read the same keys
constexpr double kSplitItemUs = 1.0;
constexpr double kSplitFoldUs = 3.0;
constexpr double kPrefillChunkUs = 17.0;  // AttentionPrefill, 128 virtual rows
// AttentionPrefill by wgmma: 128 virtual rows and 64, and an item.
constexpr double kWgmmaChunkUs = 6.0;
constexpr double kSmallWgmmaChunkUs = 3.8;
constexpr double kWgmmaItemUs = 1.5;

double SplitItemUs(int32_t chunks) {
  return kSplitItemUs + kSplitChunkUs * chunks;
}

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int32_t Chunks(int64_t keys) {
  return static_cast<int32_t>(CeilDiv(keys, kAttentionChunk));
}

}  // namespace

void AttentionPlan::Build(const std::vector<AttentionRun>& runs, bool padded) {
  if (FitsChunks(runs)) {
    BuildShared(runs, 1);
    mode_ = AttentionMode::kChunks;
    if (padded || runs.size() != 1 || split_.back().num_partials > limits_.max_unmerged) return;
    mode_ = AttentionMode::kUnmerged;
    for (AttentionItem& item : split_) item.num_items = 0;
    return;
  }
  BuildShared(runs, INT32_MAX);
  if (limits_.one_pass) return;
  const int32_t chunks = BestChunksPerItem();
  if (chunks < INT32_MAX) BuildShared(runs, chunks);
}

// How the unshared tiles in split_ are best cut: large items have little beside their chunks, small ones let
// blocks end together.
int32_t AttentionPlan::BestChunksPerItem() {
  int32_t longest = 1;
  for (const AttentionItem& item : split_) longest = std::max(longest, item.chunk_end);
  tiles_.assign(longest + 1, 0);
  for (const AttentionItem& item : split_) ++tiles_[item.chunk_end];
  int32_t best = INT32_MAX;
  double best_us = SplitUs(longest);
  // 1 .. 8, and above in steps of an eighth to a quarter.
  for (int32_t step = 1, chunks = 1; chunks < longest; chunks += step) {
    if (chunks == 8 * step) step *= 2;
    if (!FitsPartials(chunks)) continue;
    const double us = kSplitFoldUs + SplitUs(chunks);
    if (us > best_us || (us == best_us && chunks < best)) continue;
    best = chunks;
    best_us = us;
  }
  return best;
}

// Whether every decode row's chunks can have a block each, at once.
bool AttentionPlan::FitsChunks(const std::vector<AttentionRun>& runs) const {
  int64_t chunks = 0;
  for (const AttentionRun& run : runs) {
    if (run.num_rows != 1 || run.num_read > run.first_position + 1) return false;
    chunks += Chunks(run.first_position + 1);
  }
  return !runs.empty() && chunks * limits_.num_kv_heads <= limits_.chunk_blocks &&
         chunks <= limits_.max_partials && static_cast<int32_t>(runs.size()) <= limits_.max_shared_tiles;
}

// Whether the workspace has room for all tiles of tiles_ cut so: one that is left whole would take longest.
bool AttentionPlan::FitsPartials(int32_t chunks_per_item) const {
  int64_t partials = 0, shared_tiles = 0;
  for (auto chunks = static_cast<size_t>(chunks_per_item) + 1; chunks < tiles_.size(); ++chunks) {
    partials += tiles_[chunks] * (static_cast<int64_t>(chunks) - chunks_per_item + 1);
    shared_tiles += tiles_[chunks];
  }
  return partials <= limits_.max_partials && shared_tiles <= limits_.max_shared_tiles;
}

// Of the unshared tiles in split_, if they were cut into items of so many chunks: each in turn, the longest
// first, to the list that is done first (as ChainItems does it, but many alike at a time).
double AttentionPlan::SplitUs(int32_t chunks_per_item) {
  sizes_.assign(chunks_per_item + 1, 0);  // items of so many chunks
  for (int32_t chunks = 1; chunks < static_cast<int32_t>(tiles_.size()); ++chunks) {
    sizes_[chunks_per_item] += chunks / chunks_per_item * tiles_[chunks];
    sizes_[chunks % chunks_per_item] += tiles_[chunks];
  }
  lists_.assign(1, {0.0, SplitLists()});
  double longest_us = 0.0;
  for (int32_t chunks = chunks_per_item; chunks > 0; --chunks) {
    for (int64_t left = sizes_[chunks]; left > 0;) {
      std::pop_heap(lists_.begin(), lists_.end());
      const Lists least = lists_.back();
      const int64_t taken = std::min(left, least.count);
      left -= taken;
      lists_.back() = {least.us + SplitItemUs(chunks), taken};
      longest_us = std::max(longest_us, lists_.back().us);
      std::push_heap(lists_.begin(), lists_.end());
      if (taken == least.count) continue;
      lists_.push_back({least.us, least.count - taken});
      std::push_heap(lists_.begin(), lists_.end());
    }
  }
  return longest_us;
}

// Says which items the same blocks take after each other.
void AttentionPlan::ChainItems(int32_t num_lists, double item_us, double chunk_us,
                               std::vector<AttentionItem>* items) {
  if (items->size() <= static_cast<size_t>(num_lists)) return;
  const auto chunks = [](const AttentionItem& item) { return item.chunk_end - item.chunk_begin; };
  std::stable_sort(items->begin(), items->end(),
                   [&](const AttentionItem& a, const AttentionItem& b) { return chunks(a) > chunks(b); });
  lists_.clear();
  for (size_t i = 0; i < items->size(); ++i) {
    const double us = item_us + chunk_us * chunks((*items)[i]);
    if (i < static_cast<size_t>(num_lists)) {
      lists_.push_back({us, static_cast<int64_t>(i)});
    } else {
      std::pop_heap(lists_.begin(), lists_.end());
      Lists& least = lists_.back();
      (*items)[static_cast<size_t>(least.count)].next = static_cast<int32_t>(i);
      least = {least.us + us, static_cast<int64_t>(i)};
    }
    std::push_heap(lists_.begin(), lists_.end());
  }
}

void AttentionPlan::BuildShared(const std::vector<AttentionRun>& runs, int32_t chunks_per_item) {
  mode_ = AttentionMode::kGeneral;
  split_.clear();
  prefill_.clear();
  partials_ = 0;
  shared_tiles_ = 0;
  const int32_t prefill_rows = PrefillRows(runs);
  for (const AttentionRun& run : runs) {
    if (prefill_rows > 0 && IsLong(run)) {
      AddPrefill(run, prefill_rows);
    } else {
      AddSplit(run, chunks_per_item);
    }
  }
  // The longest first: what comes last should be short.
  std::stable_sort(prefill_.begin(), prefill_.end(),
                   [](const AttentionItem& a, const AttentionItem& b) { return a.chunk_end > b.chunk_end; });
  if (limits_.has_wgmma)
    ChainItems(PrefillLists(), kWgmmaItemUs,
               prefill_rows == kAttentionPrefillRows ? kWgmmaChunkUs : kSmallWgmmaChunkUs, &prefill_);
  ChainItems(SplitLists(), kSplitItemUs, kSplitChunkUs, &split_);
}

bool AttentionPlan::IsLong(const AttentionRun& run) const {
  return (limits_.head_dim == 64 || limits_.head_dim == 128) &&
         run.num_rows * Group() >= kAttentionPrefillRows / 2;
}

// Of the step's long runs in tiles of AttentionPrefill, or of its wgmma form.
double AttentionPlan::PrefillUs(const std::vector<AttentionRun>& runs, int32_t tile_rows,
                                double chunk_us) const {
  int64_t longest = 0, all = 0;
  for (const AttentionRun& run : runs) {
    if (!IsLong(run)) continue;
    const int64_t chunks = Chunks(run.first_position + run.num_rows);
    longest = std::max(longest, chunks);
    all += CeilDiv(int64_t{run.num_rows} * Group(), tile_rows) * chunks;
  }
  return static_cast<double>(std::max(longest, CeilDiv(all * limits_.num_kv_heads, limits_.num_sms))) *
         chunk_us;
}

// Of the tiles of long runs, by the kernels' times for all of them; 0 where AttentionSplit takes them.
int32_t AttentionPlan::PrefillRows(const std::vector<AttentionRun>& runs) const {
  int64_t split_chunks = 0;
  for (const AttentionRun& run : runs) {
    if (IsLong(run))
      split_chunks += CeilDiv(int64_t{run.num_rows} * Group(), kAttentionSplitRows) *
                      Chunks(run.first_position + run.num_rows);
  }
  const double split_us =
      static_cast<double>(CeilDiv(split_chunks * limits_.num_kv_heads, limits_.split_blocks)) *
      kSplitCachedChunkUs;
  double us = PrefillUs(runs, kAttentionPrefillRows, limits_.has_wgmma ? kWgmmaChunkUs : kPrefillChunkUs);
  int32_t rows = kAttentionPrefillRows;
  if (limits_.has_wgmma) {
    const double small_us = PrefillUs(runs, kAttentionSmallPrefillRows, kSmallWgmmaChunkUs);
    if (small_us < us) rows = kAttentionSmallPrefillRows;
    us = std::min(us, small_us);
  }
  return us <= split_us ? rows : 0;
}

AttentionItem AttentionPlan::MakeItem(const AttentionRun& run, int32_t first_virtual,
                                      int32_t tile_rows) const {
  AttentionItem item = {};
  item.first_row = run.first_row;
  item.first_position = run.first_position;
  item.first_virtual = first_virtual;
  item.num_virtual = std::min(tile_rows, run.num_rows * Group() - first_virtual);
  item.table_row = run.slot;
  item.num_keys = run.first_position + (first_virtual + item.num_virtual - 1) / Group() + 1;
  item.num_read = std::max(item.num_keys, run.num_read);
  item.chunk_end = Chunks(item.num_read);
  item.num_partials = 1;
  item.num_items = 1;
  item.next = -1;
  return item;
}

void AttentionPlan::AddPrefill(const AttentionRun& run, int32_t tile_rows) {
  for (int32_t v = 0; v < run.num_rows * Group(); v += tile_rows)
    prefill_.push_back(MakeItem(run, v, tile_rows));
}

void AttentionPlan::AddSplit(const AttentionRun& run, int32_t chunks_per_item) {
  for (int32_t v = 0; v < run.num_rows * Group(); v += kAttentionSplitRows) {
    AttentionItem item = MakeItem(run, v, kAttentionSplitRows);
    const int32_t chunks = item.chunk_end;
    const int32_t others =
        chunks - std::min(chunks, chunks_per_item);  // chunks that get partials of their own
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
  // A tile each, at most one begun tile a run more than the rows fill; sharing adds at most an item a block,
  // and a partial each.
  const int64_t tiles = max_rows * group / kAttentionSplitRows + max_runs;
  return static_cast<int32_t>(tiles + limits.max_partials);
}

int32_t AttentionPlan::MaxPrefillItems(const AttentionPlanLimits& limits, int32_t max_runs,
                                       int32_t max_rows) {
  const int64_t group = limits.num_heads / limits.num_kv_heads;
  const int32_t tile_rows = limits.has_wgmma ? kAttentionSmallPrefillRows : kAttentionPrefillRows;
  return static_cast<int32_t>(max_rows * group / tile_rows + max_runs);
}

std::string AttentionPlan::ToString() const {
  return std::to_string(prefill_.size()) + " prefill items, " + std::to_string(split_.size()) +
         " split items, " + std::to_string(shared_tiles_) + " tiles shared by means of " +
         std::to_string(partials_) + " partials";
}

}  // namespace ridge::kernels::cuda
