// A backend driven by hand, one sequence at a time, for what engines do not show: the cost of a pass over one
// token, and the logits at a position.
//
// Not thread-safe. Nothing else uses the backend meanwhile; it has reserved at least one slot.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "worker/backend/backend.h"

namespace ridge::bench {

// Seconds of a pass over one token at a context, medians over the repetitions.
struct PassCost {
  int32_t context;
  double serialized_s;  // each pass is waited for before the next one is submitted
  double pipelined_s;   // the next one is submitted before this one is waited for
  double host_s;        // of the serialized passes, what the calling thread spends in Submit
  int64_t launches;     // what the backend says that it gave the device for one pass, one by one
};

class BackendProbe {
 public:
  // `step_rows`: most rows of one step that the backend has reserved.
  BackendProbe(worker::Backend* backend, const Clock* clock, int32_t step_rows)
      : backend_(backend), clock_(clock), step_rows_(step_rows) {}

  absl::StatusOr<PassCost> MeasurePass(int32_t context, int warmups, int repetitions);

  // The raw logits after these tokens.
  absl::StatusOr<std::vector<float>> LogitsAfter(absl::Span<const worker::TokenId> tokens);

 private:
  // A plan that gives the slot up, if it is taken, and takes it with blocks for so many tokens.
  worker::StepPlan Attach(int64_t tokens);
  // Puts the tokens through. The last one may be put through again: it leaves the same K and V.
  absl::Status Prefill(absl::Span<const worker::TokenId> tokens);
  worker::StepPlan LastToken(absl::Span<const worker::TokenId> tokens) const;

  worker::Backend* const backend_;
  const Clock* const clock_;
  const int32_t step_rows_;
  bool attached_ = false;
};

}  // namespace ridge::bench
