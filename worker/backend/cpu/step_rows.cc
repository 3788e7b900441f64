#include "worker/backend/cpu/step_rows.h"

#include <utility>

#include "common/check.h"

namespace ridge::worker {
namespace {

void CheckHasBlocks(const Slot& slot, int64_t positions) {
  RIDGE_CHECK(positions <= static_cast<int64_t>(slot.blocks.size()) * kBlockTokens);
}

void CheckIsNew(const Slot& slot, const std::vector<RowRun>& runs) {
  for (const RowRun& run : runs) RIDGE_CHECK(run.slot != &slot);
}

}  // namespace

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
  num_top = 0;
  for (const Segment& segment : plan.segments) {
    Slot& slot = table->at(segment.slot);
    const int64_t end = int64_t{segment.first_position} + segment.num_rows;
    RIDGE_CHECK(segment.first_position >= 0 && segment.num_rows >= 1 && end <= context_length);
    CheckHasBlocks(slot, end);
    RIDGE_CHECK(segment.num_outputs >= 0 && segment.num_scored >= 0 &&
                segment.num_outputs + segment.num_scored <= segment.num_rows);
    RIDGE_CHECK(segment.num_rows <= max_rows - num_rows());
    CheckIsNew(slot, runs);
    Add(plan, segment, &slot);
  }
  AddPadding(plan, max_rows, table);
  for (const std::vector<TokenId>* ids : {&std::as_const(tokens), &plan.targets, &plan.banned}) {
    for (TokenId id : *ids) RIDGE_CHECK(id >= 0 && id < vocab_size);
  }
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
  }
  const int32_t padded_keys = segment.first_row_from_slot ? plan.padded_width : 0;
  CheckHasBlocks(*slot, padded_keys);
  runs.push_back({slot, first_row, segment.num_rows, segment.first_position, padded_keys});
  AddOutputs(plan, segment, slot, first_row);
}

void StepRows::AddPadding(const StepPlan& plan, int32_t max_rows, SlotTable* table) {
  RIDGE_CHECK(plan.padded_rows >= 0 && plan.padded_rows <= max_rows - num_rows());
  RIDGE_CHECK(plan.padded_slots.size() <= static_cast<size_t>(plan.padded_rows));
  int32_t row = num_rows();
  for (SlotId id : plan.padded_slots) {
    const Slot& slot = table->at(id);
    RIDGE_CHECK(plan.padded_width >= 1);
    CheckHasBlocks(slot, plan.padded_width);
    CheckIsNew(slot, runs);
    runs.push_back({&slot, row++, 1, plan.padded_width - 1, plan.padded_width, true});
  }
  num_padded = plan.padded_rows;
  tokens.resize(tokens.size() + static_cast<size_t>(num_padded), 0);
}

void StepRows::AddOutputs(const StepPlan& plan, const Segment& segment, Slot* slot, int32_t first_row) {
  const auto has = [](const std::vector<TokenId>& ids, int32_t begin, int32_t count) {
    return count == 0 ||
           (count > 0 && begin >= 0 && static_cast<size_t>(begin) + static_cast<size_t>(count) <= ids.size());
  };
  RIDGE_CHECK(has(plan.targets, segment.target_offset, segment.num_scored));
  RIDGE_CHECK(has(plan.banned, segment.banned_offset, segment.num_banned));
  // A row's controls depend on the tokens before it, which of several rows only the device would know.
  const bool depends_on_output = segment.num_banned > 0 || slot->sampling.has_penalties();
  RIDGE_CHECK(segment.num_outputs <= 1 || !depends_on_output);
  const auto add = [&](int32_t i, TokenId target, int32_t top) {
    outputs.push_back({slot, first_row + i, segment.first_position + i, target, top, num_top,
                       segment.banned_offset, segment.num_banned});
    num_top += top;
  };
  for (int32_t i = 0; i < segment.num_scored; ++i) {
    add(i, plan.targets[static_cast<size_t>(segment.target_offset + i)], slot->sampling.prompt_top_logprobs);
  }
  for (int32_t i = segment.num_rows - segment.num_outputs; i < segment.num_rows; ++i) {
    add(i, -1, slot->sampling.logprobs ? slot->sampling.top_logprobs : 0);
  }
}

}  // namespace ridge::worker
