#include "worker/backend/cpu/slot_controls.h"

#include <algorithm>

#include "common/check.h"

namespace ridge::worker {
namespace {

// The allowed ids as bits, less the banned ones; empty where there are neither.
std::vector<uint32_t> AllowedBits(const TokenControls& controls, int32_t vocab_size) {
  std::vector<uint32_t> bits;
  if (controls.allowed_ids.empty() && controls.banned_ids.empty()) return bits;
  bits.assign(static_cast<size_t>(kernels::MaskWords(vocab_size)), controls.allowed_ids.empty() ? ~0u : 0u);
  const auto bit = [](TokenId id) { return 1u << (id % 32); };
  for (TokenId id : controls.allowed_ids) bits[static_cast<size_t>(id / 32)] |= bit(id);
  for (TokenId id : controls.banned_ids) bits[static_cast<size_t>(id / 32)] &= ~bit(id);
  return bits;
}

void CheckIds(const std::vector<TokenId>& ids, int32_t vocab_size) {
  for (TokenId id : ids) RIDGE_CHECK(id >= 0 && id < vocab_size);
}

}  // namespace

SlotControls::SlotControls(const SlotAttach& attach, int32_t vocab_size)
    : penalties_{attach.sampling.repetition_penalty, attach.sampling.presence_penalty,
                 attach.sampling.frequency_penalty} {
  const TokenControls& controls = attach.controls;
  for (const std::vector<TokenId>* ids :
       {&controls.allowed_ids, &controls.banned_ids, &controls.late_ids, &attach.history})
    CheckIds(*ids, vocab_size);
  if (attach.sampling.has_penalties()) {
    const auto prompt_tokens = static_cast<size_t>(attach.prompt_tokens);
    RIDGE_CHECK(attach.history.size() >= prompt_tokens);
    occurrences_.resize(static_cast<size_t>(vocab_size));
    for (size_t i = 0; i < prompt_tokens; ++i)
      occurrences_[static_cast<size_t>(attach.history[i])] |= kernels::kInPrompt;
    for (size_t i = prompt_tokens; i < attach.history.size(); ++i) Count(attach.history[i]);
  }
  for (const TokenBias& entry : controls.bias) {
    RIDGE_CHECK(entry.id >= 0 && entry.id < vocab_size);
    bias_.push_back({entry.id, entry.bias});
  }
  allowed_ = AllowedBits(controls, vocab_size);
  late_ids_ = controls.late_ids;
  late_position_ = LatePosition(attach);
}

bool SlotControls::ChangeLogits(int32_t position) const {
  return !occurrences_.empty() || !bias_.empty() || !allowed_.empty() || late_ids_banned(position);
}

void SlotControls::Apply(int32_t position, absl::Span<const TokenId> banned, absl::Span<float> logits) const {
  kernels::RowControls row;
  row.penalties = penalties_;
  row.occurrences = occurrences_;
  row.bias = bias_;
  row.allowed = allowed_;
  row.banned = banned;
  if (late_ids_banned(position)) row.also_banned = late_ids_;
  kernels::ApplyControls(row, logits);
}

void SlotControls::Count(TokenId token) {
  if (!occurrences_.empty()) ++occurrences_[static_cast<size_t>(token)];
}

}  // namespace ridge::worker
