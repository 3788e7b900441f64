// Drives a backend as an engine would, one step at a time, for tests: keeps slots' positions and gives them
// blocks in a shuffled order, so that no test relies on neighbouring blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "common/check.h"
#include "worker/backend/backend.h"

namespace ridge::worker {

class StepDriver {
 public:
  StepDriver(Backend* backend, int32_t num_blocks, uint32_t seed = 1) : backend_(*backend) {
    for (BlockId block = 0; block < num_blocks; ++block) free_.push_back(block);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(seed));
  }

  // The slot is free and will be attached in the next step.
  void Attach(SlotId slot, const SamplingParams& sampling) {
    plan_.attaches.push_back({slot, sampling});
    RIDGE_CHECK(slots_.emplace(slot, SlotState{}).second);
  }

  // Released in the next step; its blocks may be used from then on, as they are.
  void Release(SlotId slot) {
    plan_.releases.push_back(slot);
    std::vector<BlockId>& blocks = slots_.at(slot).blocks;
    free_.insert(free_.begin(), blocks.begin(), blocks.end());
    slots_.erase(slot);
  }

  // Rows of host tokens at the slot's next positions.
  void AddRows(SlotId slot, const std::vector<TokenId>& tokens, int32_t num_outputs) {
    AddSegment(slot, static_cast<int32_t>(tokens.size()), false, num_outputs);
    plan_.tokens.insert(plan_.tokens.end(), tokens.begin(), tokens.end());
  }

  // One row with the slot's last token.
  void AddDecodeRow(SlotId slot) { AddSegment(slot, 1, true, 1); }

  struct Padding {
    int32_t rows = 0;
    int32_t width = 0;
  };

  StepTicket Submit(bool return_logits = false, const Padding& padding = {0, 0}) {
    plan_.return_logits = return_logits;
    plan_.padded_rows = padding.rows;
    plan_.padded_width = padding.width;
    const StepTicket ticket = backend_.Submit(plan_);
    plan_ = StepPlan();
    return ticket;
  }

  StepResult Run(bool return_logits = false, const Padding& padding = {0, 0}) {
    return backend_.Collect(Submit(return_logits, padding)).value();
  }

  int32_t planned_rows() const {
    int32_t rows = 0;
    for (const Segment& segment : plan_.segments) rows += segment.num_rows;
    return rows;
  }

 private:
  struct SlotState {
    int32_t position = 0;
    std::vector<BlockId> blocks;
  };

  void AddSegment(SlotId slot, int32_t num_rows, bool first_row_from_slot, int32_t num_outputs) {
    SlotState& state = slots_.at(slot);
    const int32_t offset = static_cast<int32_t>(plan_.tokens.size());
    plan_.segments.push_back({slot, state.position, num_rows, first_row_from_slot, offset, num_outputs});
    state.position += num_rows;
    while (static_cast<int32_t>(state.blocks.size()) * kBlockTokens < state.position) {
      RIDGE_CHECK(!free_.empty());
      plan_.appends.push_back({slot, free_.back()});
      state.blocks.push_back(free_.back());
      free_.pop_back();
    }
  }

  Backend& backend_;
  StepPlan plan_;
  std::vector<BlockId> free_;
  std::map<SlotId, SlotState> slots_;
};

}  // namespace ridge::worker
