// A backend without a model: the next token is a hash of all tokens that the sequence's block table leads to,
// so that a wrong block, position or token shows in the output. Keeps count of what it was given.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "common/check.h"
#include "worker/backend/backend.h"

namespace ridge::worker {

class FakeBackend : public Backend {
 public:
  static constexpr int32_t kVocabSize = 1000;

  // The token that follows `tokens` in a choice.
  static TokenId NextToken(const std::vector<TokenId>& tokens, uint32_t choice = 0) {
    uint64_t hash = 1469598103934665603u + choice;
    for (TokenId token : tokens) hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
    return static_cast<TokenId>((hash >> 20) % kVocabSize);
  }

  // The log-probability of the token behind a row that is scored.
  static float ScoreAt(int32_t position) { return -static_cast<float>(position + 1); }

  // What a sequence with this prompt generates.
  static std::vector<TokenId> Generate(std::vector<TokenId> prompt, int32_t count, uint32_t choice = 0) {
    std::vector<TokenId> generated;
    for (int32_t i = 0; i < count; ++i) {
      generated.push_back(NextToken(prompt, choice));
      prompt.push_back(generated.back());
    }
    return generated;
  }

  const BackendInfo& Info() const override { return info_; }

  absl::Status Reserve(int32_t num_blocks, const BackendLimits& limits) override {
    kv_.assign(num_blocks, std::vector<TokenId>(kBlockTokens, -1));
    limits_ = limits;
    return absl::OkStatus();
  }

  StepTicket Submit(const StepPlan& plan) override {
    for (SlotId slot : plan.releases) RIDGE_CHECK(slots_.erase(slot) == 1);
    for (const SlotAttach& attach : plan.attaches) {
      RIDGE_CHECK(attach.slot >= 0 && attach.slot < limits_.max_slots);
      RIDGE_CHECK(slots_.emplace(attach.slot, Slot{.choice = attach.sampling.choice}).second);
    }
    for (const BlockAppend& append : plan.appends) slots_.at(append.slot).blocks.push_back(append.block);
    for (const BlockCopy& copy : plan.copies) kv_.at(copy.to) = kv_.at(copy.from);
    StepResult result;
    for (const Segment& segment : plan.segments) RunSegment(plan, segment, &result);
    RIDGE_CHECK(plan.padded_slots.size() <= static_cast<size_t>(plan.padded_rows));
    for (SlotId slot : plan.padded_slots) RIDGE_CHECK(HasBlocks(slots_.at(slot), plan.padded_width));
    CountRows(plan, &result);
    RIDGE_CHECK(result.rows <= limits_.max_step_rows);
    steps.push_back({static_cast<int32_t>(plan.segments.size()), static_cast<int32_t>(result.rows)});
    pending_.push_back(std::move(result));
    return next_ticket_++;
  }

  absl::StatusOr<StepResult> Collect(StepTicket ticket) override {
    RIDGE_CHECK(ticket == collected_ && !pending_.empty());
    ++collected_;
    if (!fault.ok()) return fault;
    StepResult result = std::move(pending_.front());
    pending_.pop_front();
    return result;
  }

  int32_t in_flight() const { return static_cast<int32_t>(pending_.size()); }

  struct StepRecord {
    int32_t segments;
    int32_t rows;
  };
  std::vector<StepRecord> steps;
  absl::Status fault;  // given by Collect where not OK

 private:
  struct Slot {
    std::vector<BlockId> blocks = {};
    TokenId last_token = -1;
    uint32_t choice = 0;
  };

  static bool HasBlocks(const Slot& slot, int32_t positions) {
    return static_cast<int32_t>(slot.blocks.size()) * kBlockTokens >= positions;
  }

  void RunSegment(const StepPlan& plan, const Segment& segment, StepResult* result) {
    Slot& slot = slots_.at(segment.slot);
    RIDGE_CHECK(!segment.first_row_from_slot || HasBlocks(slot, plan.padded_width));
    TokenId sampled = -1;
    int32_t next_host_token = segment.token_offset;
    for (int32_t row = 0; row < segment.num_rows; ++row) {
      const int32_t position = segment.first_position + row;
      const bool from_slot = row == 0 && segment.first_row_from_slot;
      const TokenId token = from_slot ? slot.last_token : plan.tokens.at(next_host_token++);
      RIDGE_CHECK(token >= 0);
      kv_.at(slot.blocks.at(position / kBlockTokens))[position % kBlockTokens] = token;
      if (row < segment.num_scored) {
        result->outputs.push_back(
            {plan.targets.at(static_cast<size_t>(segment.target_offset + row)), ScoreAt(position)});
      }
      if (row >= segment.num_rows - segment.num_outputs) {
        sampled = NextToken(Read(slot, position + 1), slot.choice);
        result->outputs.push_back({sampled, -1.0f});
      }
    }
    if (segment.num_outputs > 0) slot.last_token = sampled;
  }

  std::vector<TokenId> Read(const Slot& slot, int32_t count) const {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < count; ++i)
      tokens.push_back(kv_[slot.blocks[i / kBlockTokens]][i % kBlockTokens]);
    return tokens;
  }

  BackendInfo info_{"fake", "fake-numerics", 1024, 1 << 30, 0, kVocabSize};
  BackendLimits limits_{};
  std::vector<std::vector<TokenId>> kv_;
  std::map<SlotId, Slot> slots_;
  std::deque<StepResult> pending_;
  StepTicket next_ticket_ = 0;
  StepTicket collected_ = 0;
};

}  // namespace ridge::worker
