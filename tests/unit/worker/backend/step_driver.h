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
  void Attach(SlotId slot, const SamplingParams& sampling) { Attach(SlotAttach{slot, sampling}); }
  void Attach(const SlotAttach& attach) {
    plan_.attaches.push_back(attach);
    RIDGE_CHECK(slots_.emplace(attach.slot, SlotState{}).second);
  }

  // Released in the next step; its blocks may be used from then on, as they are.
  void Release(SlotId slot) {
    plan_.releases.push_back(slot);
    std::vector<BlockId>& blocks = slots_.at(slot).blocks;
    free_.insert(free_.begin(), blocks.begin() + static_cast<int64_t>(slots_.at(slot).owned_from),
                 blocks.end());
    slots_.erase(slot);
  }

  // Rows of host tokens at the slot's next positions.
  void AddRows(SlotId slot, const std::vector<TokenId>& tokens, int32_t num_outputs) {
    AddSegment(slot, static_cast<int32_t>(tokens.size()), false, num_outputs);
    plan_.tokens.insert(plan_.tokens.end(), tokens.begin(), tokens.end());
  }

  // The same, where the first rows score `targets`, one each.
  void AddScoredRows(SlotId slot, const std::vector<TokenId>& tokens, const std::vector<TokenId>& targets,
                     int32_t num_outputs) {
    AddRows(slot, tokens, num_outputs);
    plan_.segments.back().num_scored = static_cast<int32_t>(targets.size());
    plan_.segments.back().target_offset = static_cast<int32_t>(plan_.targets.size());
    plan_.targets.insert(plan_.targets.end(), targets.begin(), targets.end());
  }

  // One row with the slot's last token, which may not sample `banned`.
  void AddDecodeRow(SlotId slot, const std::vector<TokenId>& banned = {}) {
    AddSegment(slot, 1, true, 1);
    plan_.segments.back().num_banned = static_cast<int32_t>(banned.size());
    plan_.segments.back().banned_offset = static_cast<int32_t>(plan_.banned.size());
    plan_.banned.insert(plan_.banned.end(), banned.begin(), banned.end());
  }

  // Slot `to`, just attached, takes what slot `from` has of its first `position` tokens: whole blocks are
  // shared, the rest of the last one is copied. `from` is released last.
  void Fork(SlotId from, SlotId to, int32_t position) {
    SlotState& state = slots_.at(to);
    state.position = position;
    const std::vector<BlockId>& blocks = slots_.at(from).blocks;
    for (int32_t i = 0; i < position / kBlockTokens; ++i) Append(to, blocks[static_cast<size_t>(i)]);
    state.owned_from = state.blocks.size();
    if (position % kBlockTokens == 0) return;
    AppendFree(to);
    plan_.copies.push_back({blocks[state.owned_from], state.blocks.back()});
  }

  // Blocks for so many positions of the slot, as memory that is reserved gives.
  void Reserve(SlotId slot, int32_t positions) {
    while (static_cast<int32_t>(slots_.at(slot).blocks.size()) * kBlockTokens < positions) AppendFree(slot);
  }

  struct Padding {
    int32_t rows = 0;
    int32_t width = 0;
    std::vector<SlotId> slots = {};
  };

  StepTicket Submit(bool return_logits = false, const Padding& padding = {0, 0, {}}) {
    plan_.return_logits = return_logits;
    plan_.padded_rows = padding.rows;
    plan_.padded_width = padding.width;
    plan_.padded_slots = padding.slots;
    const StepTicket ticket = backend_.Submit(plan_);
    plan_ = StepPlan();
    return ticket;
  }

  StepResult Collect(StepTicket ticket) { return backend_.Collect(ticket).value(); }

  StepResult Run(bool return_logits = false, const Padding& padding = {0, 0, {}}) {
    return Collect(Submit(return_logits, padding));
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
    size_t owned_from = 0;  // blocks before it are another slot's
  };

  void Append(SlotId slot, BlockId block) {
    plan_.appends.push_back({slot, block});
    slots_.at(slot).blocks.push_back(block);
  }

  void AppendFree(SlotId slot) {
    RIDGE_CHECK(!free_.empty());
    Append(slot, free_.back());
    free_.pop_back();
  }

  void AddSegment(SlotId slot, int32_t num_rows, bool first_row_from_slot, int32_t num_outputs) {
    SlotState& state = slots_.at(slot);
    const int32_t offset = static_cast<int32_t>(plan_.tokens.size());
    plan_.segments.push_back({slot, state.position, num_rows, first_row_from_slot, offset, num_outputs});
    state.position += num_rows;
    while (static_cast<int32_t>(state.blocks.size()) * kBlockTokens < state.position) AppendFree(slot);
  }

  Backend& backend_;
  StepPlan plan_;
  std::vector<BlockId> free_;
  std::map<SlotId, SlotState> slots_;
};

}  // namespace ridge::worker
