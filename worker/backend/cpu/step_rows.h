// A plan's segments as the flat lists that the forward pass works on. Plain data; memory is kept from step to
// step.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/cpu/slot_table.h"
#include "worker/backend/step_plan.h"

namespace ridge::worker {

// Consecutive rows of one sequence.
struct RowRun {
  const Slot* slot;
  int32_t first_row;  // in the step
  int32_t num_rows;
  int32_t first_position;
  int32_t padded_keys = 0;  // attention reads at least so many
  bool dropped = false;     // a padded row that reads the slot's keys: stores none, and its result is dropped
};

// A row that wants a token, or the log-probability of a known one.
struct OutputRow {
  Slot* slot;
  int32_t row;
  int32_t position;      // of the row; its token stands one further
  TokenId target;        // the known token; -1: one is sampled
  int32_t num_top;       // most likely tokens to report
  int32_t top_offset;    // of the first of them in the step's
  int32_t banned_begin;  // in the plan's list of banned tokens
  int32_t num_banned;
};

struct StepRows {
  std::vector<TokenId> tokens;     // of each row, padded ones last
  std::vector<int32_t> positions;  // of each row that is not padded
  std::vector<const Slot*> slots;  // of each row that is not padded
  std::vector<RowRun> runs;        // in the order of segments, then of padded slots
  std::vector<OutputRow> outputs;  // in the order of rows
  int32_t num_top = 0;             // of all outputs
  int32_t num_padded = 0;          // rows at the end that no run has

  int32_t num_rows() const { return static_cast<int32_t>(tokens.size()); }

  void Reserve(int32_t max_rows);
  // Lays out the segments of a plan that was applied to `slots`. CHECKs that rows have tokens of the
  // vocabulary, blocks and positions within the context, and that what each segment refers to is there.
  void Build(const StepPlan& plan, int32_t vocab_size, int32_t context_length, int32_t max_rows,
             SlotTable* slots);

 private:
  void AddPadding(const StepPlan& plan, int32_t max_rows, SlotTable* table);
  void AddOutputs(const StepPlan& plan, const Segment& segment, Slot* slot, int32_t first_row);
  void Add(const StepPlan& plan, const Segment& segment, Slot* slot);
};

}  // namespace ridge::worker
