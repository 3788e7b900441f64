// A plan as the bytes that the card needs of it, in one piece: what its kernels read besides weights and
// slots' state.
//
// The parts up to the items of AttentionSplit stand where the numbers of rows and outputs put them, so that a
// captured graph finds them again. Everything behind moves with the step. Used by the engine thread; knows no
// CUDA call.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/slot_changes.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/slot_mirror.h"

namespace ridge::worker {

// Where the parts begin, in bytes from the start of the upload, and how many entries they have.
struct StepLayout {
  int32_t num_rows = 0;         // with padding
  int32_t num_outputs = 0;      // with padding
  bool greedy = false;          // all outputs are arg maxima without log-probabilities
  bool extended = false;        // some are controlled, or report the most likely tokens
  int64_t tokens = 0;           // int32_t [num_rows]; -1 - s: the last token of slot s
  int64_t positions = 0;        // int32_t [num_rows]
  int64_t slots = 0;            // int32_t [num_rows]; -1: padding
  int64_t sample_rows = 0;      // SampleRow [num_outputs]
  int64_t output_rows = 0;      // int32_t [num_outputs]: their rows in the step
  int64_t num_split_items = 0;  // int32_t [1]
  int64_t split_items = 0;      // AttentionItem [*num_split_items]

  int64_t prefill_items = 0;     // AttentionItem []
  int64_t sampling_changes = 0;  // SamplingChange []
  int64_t block_changes = 0;     // BlockChange []
  kernels::cuda::AttentionMode attention = kernels::cuda::AttentionMode::kGeneral;
  int32_t split_count = 0;
  int32_t prefill_count = 0;
  int32_t sampling_change_count = 0;
  int32_t block_change_count = 0;
  int64_t bytes = 0;  // of all

  // The parts that do not move.
  static StepLayout Of(int32_t num_rows, int32_t num_outputs, bool greedy, bool extended = false);
};

class StepUpload {
 public:
  struct Limits {
    int32_t vocab_size;
    int32_t context_length;
    int32_t max_rows;
    int32_t max_slots;
    int32_t num_blocks;
    kernels::cuda::AttentionPlanLimits attention;
  };

  explicit StepUpload(const Limits& limits);

  // Takes a plan's changes and rows. Valid until the next call.
  void Build(const StepPlan& plan);

  // Whether the step is one row a sequence with one output each: what graphs are captured for.
  bool is_decode() const { return is_decode_; }
  // Whether all outputs are arg maxima without log-probabilities.
  bool is_greedy() const { return is_greedy_; }
  // Whether some outputs are controlled or report the most likely tokens; then it is not greedy.
  bool is_extended() const { return is_extended_; }
  // How many of them each output reports.
  const std::vector<int32_t>& num_top() const { return num_top_; }
  kernels::cuda::AttentionMode attention() const { return attention_.mode(); }
  int32_t num_rows() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t num_outputs() const { return static_cast<int32_t>(sample_rows_.size()); }

  // Writes everything to `to`, rows and outputs padded to the given numbers. At most max_bytes().
  StepLayout Write(int32_t padded_rows, int32_t padded_outputs, char* to) const;

  // Bounds the bytes of any step: every slot may get a whole new block table.
  int64_t max_bytes() const;

 private:
  // Slots may share blocks: there can be more than the pool has.
  int64_t max_block_changes() const;
  void ApplyChanges(const StepPlan& plan);
  void AddSegment(const StepPlan& plan, const Segment& segment);
  void AddPaddedRuns(const StepPlan& plan);
  void AddOutputs(const StepPlan& plan, const Segment& segment, int32_t first_row, SlotMirror::Slot* slot);

  const Limits limits_;
  SlotMirror mirror_;
  kernels::cuda::AttentionPlan attention_;

  bool is_decode_ = false;
  bool is_greedy_ = false;
  bool is_extended_ = false;
  std::vector<int32_t> tokens_, positions_, slots_, output_rows_, num_top_;
  std::vector<kernels::cuda::SampleRow> sample_rows_;
  std::vector<kernels::cuda::SamplingChange> sampling_changes_;
  std::vector<kernels::cuda::BlockChange> block_changes_;
  std::vector<kernels::cuda::AttentionRun> runs_;
  std::vector<uint32_t> last_step_of_slot_;  // the step in which the slot last had a segment
  uint32_t step_ = 0;
};

}  // namespace ridge::worker
