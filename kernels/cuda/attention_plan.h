// How a step's attention is cut into items: host arithmetic, apart from the kernels. Any cut gives the same
// bits; this decides only how long it takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"

namespace ridge::kernels::cuda {

// Consecutive rows of one sequence.
struct AttentionRun {
  int32_t first_row;  // in the step
  int32_t num_rows;
  int32_t first_position;
  int32_t slot;  // row of the block tables
  int32_t num_read =
      0;  // keys that are read where that is more than its last row sees: attention of a rectangle
};

// What a step's attention consists of.
enum class AttentionMode {
  kGeneral,   // LaunchAttentionSplit, LaunchAttentionPrefill (or its wgmma form), or both
  kChunks,    // LaunchAttentionChunk
  kUnmerged,  // the same, and the matmul behind it folds what it leaves (MatmulArgs::unmerged)
};

struct AttentionPlanLimits {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t num_sms;
  int32_t split_blocks;      // AttentionSplitBlocks
  int32_t max_partials;      // of the workspace; where they run out, tiles are not shared
  int32_t max_shared_tiles;  // likewise
  int32_t chunk_blocks = 0;  // of LaunchAttentionChunk, all resident at once; 0 where it cannot run
  int32_t max_unmerged = 0;  // chunks of a step's only row that the matmul behind folds
  bool has_wgmma = false;    // LaunchAttentionPrefillWgmma takes what LaunchAttentionPrefill would
  bool one_pass = false;     // a block walks all keys of its tile, whether that is wise or not
};

// Not thread-safe; keep one and reuse it, its memory stays.
class AttentionPlan {
 public:
  explicit AttentionPlan(const AttentionPlanLimits& limits) : limits_(limits) {}

  // `padded`: the step has rows besides those of the runs.
  void Build(const std::vector<AttentionRun>& runs, bool padded = false);
  // With items of so many chunks, whether that is wise or not.
  void BuildShared(const std::vector<AttentionRun>& runs, int32_t chunks_per_item);

  AttentionMode mode() const { return mode_; }

  // For LaunchAttentionSplit (or LaunchAttentionChunk) and LaunchAttentionPrefill (or
  // LaunchAttentionPrefillWgmma); either may be empty.
  const std::vector<AttentionItem>& split_items() const { return split_; }
  const std::vector<AttentionItem>& prefill_items() const { return prefill_; }

  // Bound the items of any step of at most `max_runs` runs and `max_rows` rows.
  static int32_t MaxSplitItems(const AttentionPlanLimits& limits, int32_t max_runs, int32_t max_rows);
  static int32_t MaxPrefillItems(const AttentionPlanLimits& limits, int32_t max_runs, int32_t max_rows);

  std::string ToString() const;

 private:
  bool FitsChunks(const std::vector<AttentionRun>& runs) const;
  int32_t BestChunksPerItem();
  // Blocks of AttentionSplit that take all KV heads of an item.
  int32_t SplitLists() const { return std::max(limits_.split_blocks / limits_.num_kv_heads, 1); }
  int32_t Group() const { return limits_.num_heads / limits_.num_kv_heads; }
  // Of AttentionPrefill's wgmma form.
  int32_t PrefillLists() const { return std::max(limits_.num_sms / limits_.num_kv_heads, 1); }
  bool IsLong(const AttentionRun& run) const;
  double PrefillUs(const std::vector<AttentionRun>& runs, int32_t tile_rows, double chunk_us) const;
  int32_t PrefillRows(const std::vector<AttentionRun>& runs) const;
  bool FitsPartials(int32_t chunks_per_item) const;
  double SplitUs(int32_t chunks_per_item);
  void ChainItems(int32_t num_lists, double item_us, double chunk_us, std::vector<AttentionItem>* items);
  AttentionItem MakeItem(const AttentionRun& run, int32_t first_virtual, int32_t tile_rows) const;
  void AddPrefill(const AttentionRun& run, int32_t tile_rows);
  void AddSplit(const AttentionRun& run, int32_t chunks_per_item);

  AttentionPlanLimits limits_;
  AttentionMode mode_ = AttentionMode::kGeneral;
  int32_t partials_ = 0;
  int32_t shared_tiles_ = 0;
  std::vector<AttentionItem> split_;
  std::vector<AttentionItem> prefill_;
  // Of SplitUs and ChainItems.
  struct Lists {
    double us;                                                          // until they are done
    int64_t count;                                                      // of lists, or one list's last item
    bool operator<(const Lists& other) const { return us > other.us; }  // the least one on top of a heap
  };
  std::vector<int32_t> tiles_, sizes_;  // of so many chunks, before and after they are cut
  std::vector<Lists> lists_;
};

}  // namespace ridge::kernels::cuda
