// A slot's penalties, biases and masks on the CPU: what an attach says of them, and the tokens that the slot
// sampled since. Used by the compute thread; Apply by several threads at once.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/logit_controls.h"
#include "worker/backend/step_plan.h"

namespace ridge::worker {

class SlotControls {
 public:
  SlotControls() = default;  // none
  SlotControls(const SlotAttach& attach, int32_t vocab_size);

  // Whether they change the logits from which the token at `position` is sampled.
  bool ChangeLogits(int32_t position) const;
  // In place. `banned` comes in addition.
  void Apply(int32_t position, absl::Span<const TokenId> banned, absl::Span<float> logits) const;
  // The slot sampled a token.
  void Count(TokenId token);

 private:
  bool late_ids_banned(int32_t position) const { return position < late_position_; }

  kernels::Penalties penalties_;
  std::vector<uint32_t> occurrences_;  // [vocab], where there is a penalty
  std::vector<kernels::LogitBias> bias_;
  std::vector<uint32_t> allowed_;  // bits, without the banned ids; empty: all
  std::vector<TokenId> late_ids_;
  int32_t late_position_ = 0;  // the first that may take a late id
};

}  // namespace ridge::worker
