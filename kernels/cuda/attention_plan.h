// How a step's attention is cut into items: host arithmetic, apart from the kernels. Any cut gives the same
// bits; this decides only how long it takes.
#pragma once

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
};

struct AttentionPlanLimits {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t num_sms;
  int32_t split_blocks;      // AttentionSplitBlocks
  int32_t max_partials;      // of the workspace; where they run out, tiles are not shared
  int32_t max_shared_tiles;  // likewise
};

// Not thread-safe; keep one and reuse it, its memory stays.
class AttentionPlan {
 public:
  explicit AttentionPlan(const AttentionPlanLimits& limits) : limits_(limits) {}

  void Build(const std::vector<AttentionRun>& runs);
  // With items of so many chunks, whether that is wise or not.
  void BuildShared(const std::vector<AttentionRun>& runs, int32_t chunks_per_item);

  // For LaunchAttentionSplit and LaunchAttentionPrefill; either may be empty.
  const std::vector<AttentionItem>& split_items() const { return split_; }
  const std::vector<AttentionItem>& prefill_items() const { return prefill_; }

  // Bound the items of any step of at most `max_runs` runs and `max_rows` rows.
  static int32_t MaxSplitItems(const AttentionPlanLimits& limits, int32_t max_runs, int32_t max_rows);
  static int32_t MaxPrefillItems(const AttentionPlanLimits& limits, int32_t max_runs, int32_t max_rows);

  std::string ToString() const;

 private:
  int32_t Group() const { return limits_.num_heads / limits_.num_kv_heads; }
  bool IsLong(const AttentionRun& run) const;
  bool PrefersPrefill(const std::vector<AttentionRun>& runs) const;
  double SplitUs(int32_t chunks_per_item) const;
  AttentionItem MakeItem(const AttentionRun& run, int32_t first_virtual, int32_t tile_rows) const;
  void AddPrefill(const AttentionRun& run);
  void AddSplit(const AttentionRun& run, int32_t chunks_per_item);

  AttentionPlanLimits limits_;
  int32_t partials_ = 0;
  int32_t shared_tiles_ = 0;
  std::vector<AttentionItem> split_;
  std::vector<AttentionItem> prefill_;
};

}  // namespace ridge::kernels::cuda
