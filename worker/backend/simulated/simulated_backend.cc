#include "worker/backend/simulated/simulated_backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/hash.h"

namespace ridge::worker {
namespace {

// The finaliser of SplitMix64.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

SimulatedBackend::SimulatedBackend(const SimulatedCard& card, const ModelConfig& model,
                                   SimulatedOptions options)
    : options_(std::move(options)), cost_(card, model, options_.split_attention, options_.replay) {
  Sha256 hash;
  hash.Update(absl::StrCat("simulated 1 ", CanonicalText(model)));
  info_.numerics_id = hash.HexDigest().substr(0, 32);
  info_.device = absl::StrCat("simulated: ", card.device);
  info_.kv_block_bytes = model.kv_bytes_per_token() * kBlockTokens;
  info_.memory_bytes = static_cast<int64_t>(card.memory_bytes);
  info_.weight_bytes = 2 * model.num_parameters();
  info_.vocab_size = model.vocab_size;
  info_.extended_sampling = true;
  model_hash_ = std::stoull(info_.numerics_id.substr(0, 16), nullptr, 16);
}

absl::StatusOr<int32_t> SimulatedBackend::DefaultBlocks(const BackendLimits& limits) {
  if (info_.memory_bytes == 0) return Backend::DefaultBlocks(limits);
  const int64_t blocks = (info_.memory_bytes - info_.weight_bytes) / info_.kv_block_bytes;
  if (blocks < 1)
    return absl::ResourceExhaustedError("the card's memory does not hold the weights and one block");
  return static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX));
}

absl::Status SimulatedBackend::Reserve(int32_t num_blocks, const BackendLimits& limits) {
  RIDGE_CHECK(hashes_.empty() && num_blocks >= 1);
  const int64_t needed = info_.weight_bytes + num_blocks * info_.kv_block_bytes;
  if (info_.memory_bytes > 0 && needed > info_.memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("KV cache: weights and ", num_blocks, " blocks need ",
                                                     needed, " bytes of ", info_.memory_bytes));
  }
  limits_ = limits;
  slots_.resize(static_cast<size_t>(limits.max_slots));
  hashes_.resize(static_cast<size_t>(num_blocks) * kBlockTokens);
  return absl::OkStatus();
}

StepTicket SimulatedBackend::Submit(const StepPlan& plan) {
  RIDGE_CHECK(!hashes_.empty() && !plan.return_logits);
  Apply(plan);
  Step step;
  CountRows(plan, &step.result);
  const StepCost cost = cost_.Of(plan);
  step.result.launches = cost.launches;
  RIDGE_CHECK(step.result.rows <= limits_.max_step_rows);
  for (const Segment& segment : plan.segments) RunSegment(plan, segment, &step.result);
  step.done_ns = timeline_.Add(options_.clock->NowNs(), cost);
  steps_.push_back(std::move(step));
  return submitted_++;
}

void SimulatedBackend::WaitFor(StepTicket ticket, int64_t most_ns) {
  RIDGE_CHECK(ticket == collected_ && !steps_.empty());
  WaitUntil(std::min(steps_.front().done_ns, options_.clock->NowNs() + most_ns));
}

absl::StatusOr<StepResult> SimulatedBackend::Collect(StepTicket ticket) {
  RIDGE_CHECK(ticket == collected_ && !steps_.empty());
  ++collected_;
  Step step = std::move(steps_.front());
  steps_.pop_front();
  WaitUntil(step.done_ns);
  return std::move(step.result);
}

void SimulatedBackend::WaitUntil(int64_t time_ns) {
  const int64_t now_ns = options_.clock->NowNs();
  if (time_ns <= now_ns) return;
  if (options_.wait_until) {
    options_.wait_until(time_ns);
  } else {
    absl::SleepFor(absl::Nanoseconds(time_ns - now_ns));
  }
}

void SimulatedBackend::Apply(const StepPlan& plan) {
  for (SlotId id : plan.releases) {
    Slot& slot = SlotAt(id);
    slot.attached = false;
    slot.last_token = -1;
    slot.blocks.clear();
  }
  for (const SlotAttach& attach : plan.attaches) Attach(attach);
  for (const BlockAppend& append : plan.appends) {
    RIDGE_CHECK(append.block >= 0 && static_cast<size_t>(append.block) * kBlockTokens < hashes_.size());
    SlotAt(append.slot).blocks.push_back(append.block);
  }
  for (const BlockCopy& copy : plan.copies) {
    const auto block = [this](BlockId id) { return hashes_.begin() + int64_t{id} * kBlockTokens; };
    std::copy_n(block(copy.from), kBlockTokens, block(copy.to));
  }
}

void SimulatedBackend::Attach(const SlotAttach& attach) {
  RIDGE_CHECK(attach.slot >= 0 && static_cast<size_t>(attach.slot) < slots_.size());
  Slot& slot = slots_[static_cast<size_t>(attach.slot)];
  RIDGE_CHECK(!slot.attached);
  const TokenControls& controls = attach.controls;
  slot.attached = true;
  slot.sampling = attach.sampling;
  slot.allowed_ids = controls.allowed_ids;
  slot.is_banned.assign(controls.banned_ids.empty() ? 0 : static_cast<size_t>(info_.vocab_size), false);
  for (TokenId id : controls.banned_ids) slot.is_banned[static_cast<size_t>(id)] = true;
  slot.late_ids = controls.late_ids;
  absl::c_sort(slot.late_ids);
  slot.min_tokens = controls.min_tokens;
  slot.prompt_tokens = attach.prompt_tokens;
}

void SimulatedBackend::RunSegment(const StepPlan& plan, const Segment& segment, StepResult* result) {
  Slot& slot = SlotAt(segment.slot);
  const int32_t end = segment.first_position + segment.num_rows;
  const int32_t read = segment.first_row_from_slot ? std::max(end, plan.padded_width) : end;
  RIDGE_CHECK(segment.first_position >= 0 && segment.num_rows >= 1 &&
              static_cast<size_t>(read) <= slot.blocks.size() * kBlockTokens);
  uint64_t hash = segment.first_position == 0 ? model_hash_ : HashAt(slot, segment.first_position - 1);
  const auto first_banned = plan.banned.begin() + segment.banned_offset;
  std::vector<TokenId> banned(first_banned, first_banned + segment.num_banned);
  absl::c_sort(banned);
  const TokenId* host = plan.tokens.data() + segment.token_offset;
  for (int32_t position = segment.first_position; position < end; ++position) {
    const bool from_slot = segment.first_row_from_slot && position == segment.first_position;
    const TokenId token = from_slot ? slot.last_token : *host++;
    RIDGE_CHECK(token >= 0 && token < info_.vocab_size);
    hash = Mix(hash + 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(token) + 1));
    HashAt(slot, position) = hash;
    const int32_t row = position - segment.first_position;
    if (row < segment.num_scored) {
      const TokenId target = plan.targets[static_cast<size_t>(segment.target_offset + row)];
      AddOutput(target, true, slot.sampling.prompt_top_logprobs, hash, result);
    } else if (position >= end - segment.num_outputs) {
      const TokenId next = Sample(slot, position, banned, hash);
      AddOutput(next, slot.sampling.logprobs, slot.sampling.top_logprobs, hash, result);
    }
  }
  if (segment.num_outputs > 0) slot.last_token = result->outputs.back().token;
}

TokenId SimulatedBackend::Sample(const Slot& slot, int32_t position, absl::Span<const TokenId> banned,
                                 uint64_t hash) const {
  const SamplingParams& sampling = slot.sampling;
  if (sampling.temperature != 0) hash = Mix(hash ^ Mix(sampling.seed + (uint64_t{sampling.choice} << 32)));
  const bool is_early = position + 1 - slot.prompt_tokens < slot.min_tokens;
  const auto is_banned = [&](TokenId token) {
    return (!slot.is_banned.empty() && slot.is_banned[static_cast<size_t>(token)]) ||
           absl::c_binary_search(banned, token) || (is_early && absl::c_binary_search(slot.late_ids, token));
  };
  const auto& allowed = slot.allowed_ids;
  const uint64_t choices = allowed.empty() ? static_cast<uint64_t>(info_.vocab_size) : allowed.size();
  // The high half times the number of choices: no bias that matters, no division. The next choice that is not
  // banned; one is left.
  for (uint64_t choice = ((hash >> 32) * choices) >> 32;; choice = (choice + 1) % choices) {
    const TokenId token = allowed.empty() ? static_cast<TokenId>(choice) : allowed[choice];
    if (!is_banned(token)) return token;
  }
}

void SimulatedBackend::AddOutput(TokenId token, bool logprob, int32_t num_top, uint64_t hash,
                                 StepResult* result) {
  RowOutput output{token, 0.0f, num_top};
  if (logprob) output.logprob = -static_cast<float>(hash & 0xFFFF) / 8192.0f;
  result->outputs.push_back(output);
  for (int32_t i = 0; i < num_top; ++i)
    result->top.push_back(
        {i == 0 ? token : i - 1 + (i - 1 >= token), output.logprob - static_cast<float>(i)});
}

SimulatedBackend::Slot& SimulatedBackend::SlotAt(SlotId id) {
  RIDGE_CHECK(id >= 0 && static_cast<size_t>(id) < slots_.size());
  Slot& slot = slots_[static_cast<size_t>(id)];
  RIDGE_CHECK(slot.attached);
  return slot;
}

uint64_t& SimulatedBackend::HashAt(const Slot& slot, int32_t position) {
  const BlockId block = slot.blocks[static_cast<size_t>(position / kBlockTokens)];
  return hashes_[static_cast<size_t>(block) * kBlockTokens + static_cast<size_t>(position % kBlockTokens)];
}

}  // namespace ridge::worker
