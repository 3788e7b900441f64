#include "worker/backend/cpu/step_rows.h"

#include "common/check.h"

namespace ridge::worker {

void StepRows::Reserve(int32_t max_rows) {
  const size_t rows = static_cast<size_t>(max_rows);
  tokens.reserve(rows);
  positions.reserve(rows);
  slots.reserve(rows);
  runs.reserve(rows);
  outputs.reserve(rows);
}

void StepRows::Build(const StepPlan& plan, int32_t vocab_size, int32_t context_length, int32_t max_rows,
                     SlotTable* table) {
  tokens.clear();
  positions.clear();
  slots.clear();
  runs.clear();
  outputs.clear();
  for (const Segment& segment : plan.segments) {
    Slot& slot = table->at(segment.slot);
    const int64_t end = int64_t{segment.first_position} + segment.num_rows;
    RIDGE_CHECK(segment.first_position >= 0 && segment.num_rows >= 1 && end <= context_length);
    RIDGE_CHECK(end <= static_cast<int64_t>(slot.blocks.size()) * kBlockTokens);
    RIDGE_CHECK(segment.num_outputs >= 0 && segment.num_outputs <= segment.num_rows);
    RIDGE_CHECK(segment.num_rows <= max_rows - num_rows());
    for (const RowRun& run : runs) RIDGE_CHECK(run.slot != &slot);
    Add(plan, segment, &slot);
  }
  RIDGE_CHECK(plan.padded_rows >= 0 && plan.padded_rows <= max_rows - num_rows());
  num_padded = plan.padded_rows;
  tokens.resize(tokens.size() + static_cast<size_t>(num_padded), 0);
  for (TokenId token : tokens) RIDGE_CHECK(token >= 0 && token < vocab_size);
}

void StepRows::Add(const StepPlan& plan, const Segment& segment, Slot* slot) {
  const int32_t first_row = num_rows();
  const int32_t host_tokens = segment.num_rows - (segment.first_row_from_slot ? 1 : 0);
  RIDGE_CHECK(segment.token_offset >= 0 &&
              static_cast<size_t>(segment.token_offset) + static_cast<size_t>(host_tokens) <=
                  plan.tokens.size());
  if (segment.first_row_from_slot) tokens.push_back(slot->last_token);
  const auto host = plan.tokens.begin() + segment.token_offset;
  tokens.insert(tokens.end(), host, host + host_tokens);
  for (int32_t i = 0; i < segment.num_rows; ++i) {
    positions.push_back(segment.first_position + i);
    slots.push_back(slot);
    if (i >= segment.num_rows - segment.num_outputs) {
      outputs.push_back({slot, first_row + i, segment.first_position + i});
    }
  }
  runs.push_back({slot, first_row, segment.num_rows, segment.first_position});
}

}  // namespace ridge::worker
