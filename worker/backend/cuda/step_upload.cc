#include "worker/backend/cuda/step_upload.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace ridge::worker {
namespace {

using kernels::cuda::AttentionItem;
using kernels::cuda::AttentionPlan;
using kernels::cuda::BlockChange;
using kernels::cuda::SampleRow;
using kernels::cuda::SamplingChange;

constexpr int64_t kAlignment = 16;

// The place of `count` entries behind `*end`, which moves past them.
template <typename T>
int64_t Take(int64_t count, int64_t* end) {
  const int64_t place = (*end + kAlignment - 1) / kAlignment * kAlignment;
  *end = place + count * static_cast<int64_t>(sizeof(T));
  return place;
}

template <typename T>
void Copy(const std::vector<T>& from, char* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(T));
}

// Copies and fills up to `count` entries.
template <typename T>
void CopyPadded(const std::vector<T>& from, int32_t count, T padding, char* to) {
  Copy(from, to);
  T* entries = reinterpret_cast<T*>(to);
  std::fill(entries + from.size(), entries + count, padding);
}

kernels::cuda::SlotSampling ToSlotSampling(const SlotAttach& attach) {
  const SamplingParams& params = attach.sampling;
  kernels::cuda::SlotSampling sampling{};
  sampling.seed = params.seed;
  sampling.choice = params.choice;
  sampling.temperature = params.temperature;
  sampling.top_p = params.top_p;
  sampling.min_p = params.min_p;
  sampling.top_k = params.top_k;
  sampling.logprobs = params.logprobs ? 1 : 0;
  sampling.repetition_penalty = params.repetition_penalty;
  sampling.presence_penalty = params.presence_penalty;
  sampling.frequency_penalty = params.frequency_penalty;
  sampling.penalised = params.has_penalties() ? 1 : 0;
  sampling.num_biases = static_cast<int32_t>(attach.controls.bias.size());
  sampling.late_position = LatePosition(attach);
  sampling.top_logprobs = params.top_logprobs;
  sampling.prompt_top_logprobs = params.prompt_top_logprobs;
  return sampling;
}

}  // namespace

StepLayout StepLayout::Of(int32_t num_rows, int32_t num_outputs, bool greedy, bool extended) {
  StepLayout layout;
  layout.num_rows = num_rows;
  layout.num_outputs = num_outputs;
  layout.greedy = greedy;
  layout.extended = extended;
  layout.tokens = Take<int32_t>(num_rows, &layout.bytes);
  layout.positions = Take<int32_t>(num_rows, &layout.bytes);
  layout.slots = Take<int32_t>(num_rows, &layout.bytes);
  layout.sample_rows = Take<SampleRow>(num_outputs, &layout.bytes);
  layout.output_rows = Take<int32_t>(num_outputs, &layout.bytes);
  layout.num_split_items = Take<int32_t>(1, &layout.bytes);
  layout.split_items = Take<AttentionItem>(0, &layout.bytes);
  return layout;
}

StepUpload::StepUpload(const Limits& limits)
    : limits_(limits),
      mirror_(limits.max_slots, limits.num_blocks, (limits.context_length + kBlockTokens - 1) / kBlockTokens),
      attention_(limits.attention),
      last_step_of_slot_(static_cast<size_t>(limits.max_slots)) {
  const size_t rows = static_cast<size_t>(limits.max_rows), slots = static_cast<size_t>(limits.max_slots);
  for (std::vector<int32_t>* list : {&tokens_, &positions_, &slots_, &output_rows_, &num_top_})
    list->reserve(rows);
  sample_rows_.reserve(rows);
  sampling_changes_.reserve(slots);
  block_changes_.reserve(static_cast<size_t>(max_block_changes()));
  runs_.reserve(slots);
}

int64_t StepUpload::max_block_changes() const {
  return int64_t{limits_.max_slots} * ((limits_.context_length + kBlockTokens - 1) / kBlockTokens);
}

int64_t StepUpload::max_bytes() const {
  int64_t bytes = StepLayout::Of(limits_.max_rows, limits_.max_rows, false).bytes;
  const int32_t runs = std::min(limits_.max_slots, limits_.max_rows);
  Take<AttentionItem>(AttentionPlan::MaxSplitItems(limits_.attention, runs, limits_.max_rows), &bytes);
  Take<AttentionItem>(AttentionPlan::MaxPrefillItems(limits_.attention, runs, limits_.max_rows), &bytes);
  Take<SamplingChange>(limits_.max_slots, &bytes);
  Take<BlockChange>(max_block_changes(), &bytes);
  return bytes;
}

void StepUpload::Build(const StepPlan& plan) {
  for (std::vector<int32_t>* list : {&tokens_, &positions_, &slots_, &output_rows_}) list->clear();
  sample_rows_.clear();
  num_top_.clear();
  runs_.clear();
  ++step_;
  is_decode_ = is_greedy_ = true;
  is_extended_ = false;
  ApplyChanges(plan);
  for (const Segment& segment : plan.segments) AddSegment(plan, segment);
  AddPaddedRuns(plan);
  attention_.Build(runs_, plan.padded_rows > 0);
  is_decode_ = is_decode_ && attention_.prefill_items().empty();
}

void StepUpload::ApplyChanges(const StepPlan& plan) {
  sampling_changes_.clear();
  block_changes_.clear();
  for (SlotId id : plan.releases) mirror_.Release(id);
  for (const SlotAttach& attach : plan.attaches) {
    mirror_.Attach(attach);
    sampling_changes_.push_back({ToSlotSampling(attach), attach.slot});
  }
  for (const BlockAppend& append : plan.appends) {
    block_changes_.push_back({append.slot, mirror_.Append(append.slot, append.block), append.block});
  }
}

void StepUpload::AddSegment(const StepPlan& plan, const Segment& segment) {
  SlotMirror::Slot& slot = mirror_.at(segment.slot);
  const int64_t end = int64_t{segment.first_position} + segment.num_rows;
  RIDGE_CHECK(segment.first_position >= 0 && segment.num_rows >= 1 && end <= limits_.context_length);
  RIDGE_CHECK(end <= int64_t{slot.num_blocks} * kBlockTokens);
  RIDGE_CHECK(segment.num_outputs >= 0 && segment.num_scored >= 0 &&
              segment.num_outputs + segment.num_scored <= segment.num_rows);
  RIDGE_CHECK(segment.num_rows <= limits_.max_rows - num_rows());
  uint32_t& last_step = last_step_of_slot_[static_cast<size_t>(segment.slot)];
  RIDGE_CHECK(last_step != step_);
  last_step = step_;

  const int32_t host_tokens = segment.num_rows - (segment.first_row_from_slot ? 1 : 0);
  RIDGE_CHECK(segment.token_offset >= 0 &&
              static_cast<size_t>(segment.token_offset) + static_cast<size_t>(host_tokens) <=
                  plan.tokens.size());
  RIDGE_CHECK(!segment.first_row_from_slot || slot.has_token);
  const int32_t first_row = num_rows();
  if (segment.first_row_from_slot) tokens_.push_back(-1 - segment.slot);
  for (int32_t i = 0; i < host_tokens; ++i) {
    const TokenId token = plan.tokens[static_cast<size_t>(segment.token_offset + i)];
    RIDGE_CHECK(token >= 0 && token < limits_.vocab_size);
    tokens_.push_back(token);
  }
  for (int32_t i = 0; i < segment.num_rows; ++i) {
    positions_.push_back(segment.first_position + i);
    slots_.push_back(segment.slot);
  }
  AddOutputs(plan, segment, first_row, &slot);
  const int32_t width = segment.first_row_from_slot ? plan.padded_width : 0;
  RIDGE_CHECK(width <= slot.num_blocks * kBlockTokens);
  runs_.push_back({first_row, segment.num_rows, segment.first_position, segment.slot, width});
  is_decode_ = is_decode_ && segment.num_rows == 1 && segment.num_outputs == 1;
}

// Of the padded rows that take the places of sequences that have ended.
void StepUpload::AddPaddedRuns(const StepPlan& plan) {
  RIDGE_CHECK(plan.padded_slots.size() <= static_cast<size_t>(plan.padded_rows));
  int32_t row = num_rows();
  for (SlotId slot : plan.padded_slots) {
    RIDGE_CHECK(plan.padded_width >= 1 && plan.padded_width <= mirror_.at(slot).num_blocks * kBlockTokens);
    runs_.push_back({row++, 1, plan.padded_width - 1, slot});
  }
}

void StepUpload::AddOutputs(const StepPlan& plan, const Segment& segment, int32_t first_row,
                            SlotMirror::Slot* slot) {
  const auto has = [](const std::vector<TokenId>& ids, int32_t begin, int32_t count) {
    return count == 0 ||
           (count > 0 && begin >= 0 && static_cast<size_t>(begin) + static_cast<size_t>(count) <= ids.size());
  };
  RIDGE_CHECK(has(plan.targets, segment.target_offset, segment.num_scored));
  RIDGE_CHECK(has(plan.banned, segment.banned_offset, segment.num_banned));
  const auto add = [&](int32_t i, TokenId target, bool controlled, int32_t top) {
    sample_rows_.push_back({segment.slot, segment.first_position + i + 1, target, controlled ? 1 : 0});
    output_rows_.push_back(first_row + i);
    num_top_.push_back(top);
    is_greedy_ = is_greedy_ && target < 0 && !controlled && slot->greedy;
    is_extended_ = is_extended_ || controlled || top > 0;
  };
  for (int32_t i = 0; i < segment.num_scored; ++i)
    add(i, plan.targets[static_cast<size_t>(segment.target_offset + i)], false, slot->prompt_top);
  for (int32_t i = segment.num_rows - segment.num_outputs; i < segment.num_rows; ++i) {
    const bool controlled =
        slot->controlled || segment.num_banned > 0 || segment.first_position + i + 1 < slot->late_position;
    // A row's controls depend on the tokens before it; and a slot has the memory for one controlled row.
    RIDGE_CHECK(!controlled || segment.num_outputs == 1);
    add(i, -1, controlled, slot->top);
  }
  if (segment.num_outputs > 0) slot->has_token = true;
}

StepLayout StepUpload::Write(int32_t padded_rows, int32_t padded_outputs, char* to) const {
  RIDGE_CHECK(padded_rows >= num_rows() && padded_outputs >= num_outputs());
  StepLayout layout = StepLayout::Of(padded_rows, padded_outputs, is_greedy_, is_extended_);
  layout.attention = attention_.mode();
  layout.split_count = static_cast<int32_t>(attention_.split_items().size());
  layout.prefill_count = static_cast<int32_t>(attention_.prefill_items().size());
  layout.sampling_change_count = static_cast<int32_t>(sampling_changes_.size());
  layout.block_change_count = static_cast<int32_t>(block_changes_.size());
  RIDGE_CHECK(Take<AttentionItem>(layout.split_count, &layout.bytes) == layout.split_items);
  layout.prefill_items = Take<AttentionItem>(layout.prefill_count, &layout.bytes);
  layout.sampling_changes = Take<SamplingChange>(layout.sampling_change_count, &layout.bytes);
  layout.block_changes = Take<BlockChange>(layout.block_change_count, &layout.bytes);

  CopyPadded(tokens_, padded_rows, 0, to + layout.tokens);
  CopyPadded(positions_, padded_rows, 0, to + layout.positions);
  CopyPadded(slots_, padded_rows, -1, to + layout.slots);
  CopyPadded(sample_rows_, padded_outputs, SampleRow{-1, 0}, to + layout.sample_rows);
  CopyPadded(output_rows_, padded_outputs, 0, to + layout.output_rows);
  std::memcpy(to + layout.num_split_items, &layout.split_count, sizeof(int32_t));
  Copy(attention_.split_items(), to + layout.split_items);
  Copy(attention_.prefill_items(), to + layout.prefill_items);
  Copy(sampling_changes_, to + layout.sampling_changes);
  Copy(block_changes_, to + layout.block_changes);
  return layout;
}

}  // namespace ridge::worker
