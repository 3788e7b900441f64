// One forward pass, as the scheduler writes it and a backend runs it. Plain data; the only thing besides
// StepResult that crosses between engine and device.
//
// A *slot* is device state of one running sequence: its block table, its last sampled token and its sampling
// parameters. A plan carries changes to slots, then the rows to compute. A backend applies the parts in the
// order in which they stand here: releases, attaches, appended blocks, block copies, segments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/backend/sampling_params.h"

namespace ridge::worker {

using SlotId = int32_t;
using BlockId = int32_t;

// Tokens of one KV block, of all layers.
inline constexpr int32_t kBlockTokens = 16;

// A sequence takes a free slot; its block table starts empty. What the slot gives afterwards is a function of
// this and of the rows: a sequence that comes back after a preemption brings what it generated so far in
// `history`.
struct SlotAttach {
  SlotId slot;
  SamplingParams sampling;
  TokenControls controls = {};
  int32_t prompt_tokens =
      0;  // how many of the sequence's tokens are the prompt's; for penalties and min_tokens
  // The sequence's tokens so far, prompt and output, where sampling.has_penalties(); else empty. The tokens
  // that the slot samples from then on are added to it by the backend.
  std::vector<TokenId> history = {};
};

// The first position whose token may be one of controls.late_ids.
inline int32_t LatePosition(const SlotAttach& attach) {
  return attach.controls.late_ids.empty() ? 0 : attach.prompt_tokens + attach.controls.min_tokens;
}

// The next entry of a slot's block table.
struct BlockAppend {
  SlotId slot;
  BlockId block;
};

// Block `to`, which no slot reads yet, becomes what block `from` is after all earlier steps: copy-on-write.
struct BlockCopy {
  BlockId from;
  BlockId to;
};

// Consecutive rows of one sequence: a decode row, a chunk of a prefill, or a resumed stretch. Row i stands at
// position first_position + i, writes its K and V there (the block table covers it) and attends to positions
// 0 .. its own.
struct Segment {
  SlotId slot;
  int32_t first_position;
  int32_t num_rows;  // >= 1
  // Row 0 takes the slot's last sampled token and only rows 1.. take host tokens; otherwise all rows do.
  bool first_row_from_slot;
  // Where this segment's host tokens start in StepPlan::tokens.
  int32_t token_offset;
  // The last num_outputs rows want a token: 0 (inside a prefill), 1, or more. The slot's last token becomes
  // that of the last row.
  int32_t num_outputs;
  // The first num_scored rows do not sample: their output is the log-probability of a known token that
  // follows, row i's being StepPlan::targets[target_offset + i] (prompt log-probabilities). num_scored +
  // num_outputs <= num_rows.
  int32_t num_scored = 0;
  int32_t target_offset = 0;
  // Tokens that the output row (one at most, then) may not sample besides those of the slot's controls:
  // StepPlan::banned[banned_offset ..], num_banned of them. They leave at least one.
  int32_t num_banned = 0;
  int32_t banned_offset = 0;
};

// One row that reads what is there, whoever has its token; as opposed to a prompt's, which attend to each
// other.
inline bool IsDecode(const Segment& segment) {
  return segment.num_rows == 1 || segment.first_row_from_slot;
}

struct StepPlan {
  std::vector<SlotId> releases;
  std::vector<SlotAttach> attaches;
  std::vector<BlockAppend> appends;
  std::vector<BlockCopy> copies;
  std::vector<Segment> segments;  // at most one a slot
  std::vector<TokenId> tokens;
  std::vector<TokenId> targets;
  std::vector<TokenId> banned;
  // Rows that belong to no sequence and are computed nevertheless: token 0, through every layer. They store
  // nothing and give no output. The price of an engine that pads its batches.
  int32_t padded_rows = 0;
  // Attention of an engine whose batch is a rectangle: a decode row (first_row_from_slot) reads and computes
  // with the K and V of this many positions of its slot's blocks, which cover them, where its own context is
  // shorter. What lies beyond its own has no part in its result.
  int32_t padded_width = 0;
  // Of sequences that ended: the first of the padded rows take their places in the rectangle and read
  // padded_width positions of their blocks, for nothing. The others attend to nothing. Attached slots without
  // a segment.
  std::vector<SlotId> padded_slots;
  // Also return the raw logits of every output row (tests and diagnostics).
  bool return_logits = false;
};

// A token and the log-softmax of the raw logits there.
struct TokenLogprob {
  TokenId id;
  float logprob;
};

// What a step gives for one output row, sampled or scored.
struct RowOutput {
  TokenId token;  // sampled, or the row's target
  // Log-softmax of the raw logits at `token`; of a sampled one 0 unless the slot asked for it.
  float logprob;
  // How many of the most likely tokens are reported, as the slot asked for.
  int32_t num_top = 0;
};

struct StepResult {
  // One a wanted output row, in the order of segments and rows.
  std::vector<RowOutput> outputs;
  // The most likely tokens of the rows that report them, one row after the other; most likely first, of equal
  // ones the lowest id.
  std::vector<TokenLogprob> top;
  // [outputs][vocab_size] where the plan asked for them, else empty.
  std::vector<float> logits;
  // Rows put through the model, padded ones included.
  int64_t rows = 0;
  int64_t padded_rows = 0;
  // Pairs of a row and a position whose K and V its attention takes, those of a rectangle included.
  int64_t kv_positions = 0;
  // What the host started on the device one by one: kernels on a stream, graphs, copies; parallel regions of
  // the CPU's threads.
  int64_t launches = 0;
};

// The rows and positions of a plan, the same on every device.
inline void CountRows(const StepPlan& plan, StepResult* result) {
  result->rows = result->padded_rows = plan.padded_rows;
  result->kv_positions = static_cast<int64_t>(plan.padded_slots.size()) * plan.padded_width;
  for (const Segment& segment : plan.segments) {
    const int64_t rows = segment.num_rows;
    const int64_t width = segment.first_row_from_slot ? plan.padded_width : 0;
    result->rows += rows;
    result->kv_positions += std::max(rows * width, rows * segment.first_position + rows * (rows + 1) / 2);
  }
}

}  // namespace ridge::worker
