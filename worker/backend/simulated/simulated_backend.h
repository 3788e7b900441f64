// A device that is not there: deterministic tokens at the pace of a card's cost model, on a real or a virtual
// clock. No weights are read and no model is computed, so that engine, services and routers can be tried
// under any load anywhere.
//
// Tokens. Where a real device keeps K and V of a position, this one keeps a hash of the model's configuration
// and all tokens up to that position, in the same blocks; a row continues the hash of the position before, as
// its block table leads to it. Its token is taken from that hash, and from seed and choice too unless
// sampling is greedy. So tokens depend on the request alone, and a wrong block, position or token shows.
// Every token that is allowed is as likely as any other: penalties and biases change nothing.
// Log-probabilities are made up from the same hash; logits do not exist (CHECK).
//
// Threads: as Backend says; no thread of its own. A step's results are there at Submit, its time passes in
// Collect.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "worker/backend/backend.h"
#include "worker/backend/simulated/card.h"
#include "worker/backend/simulated/cost_model.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

struct SimulatedOptions {
  bool split_attention = true;  // decode attention is split over K and V, not one pass
  bool replay = true;           // steps are replayed from graphs, not launched on a stream
  Clock* clock = RealClock();
  // Returns when the clock has come to this time: sleeps. On a virtual clock it moves that.
  std::function<void(int64_t time_ns)> wait_until;
};

class SimulatedBackend : public Backend {
 public:
  // Without wait_until it sleeps, which goes with the real clock.
  SimulatedBackend(const SimulatedCard& card, const ModelConfig& model, SimulatedOptions options);

  const BackendInfo& Info() const override { return info_; }
  // What the card has beside the weights.
  absl::StatusOr<int32_t> DefaultBlocks(const BackendLimits& limits) override;
  absl::Status Reserve(int32_t num_blocks, const BackendLimits& limits) override;
  StepTicket Submit(const StepPlan& plan) override;
  void WaitFor(StepTicket ticket, int64_t most_ns) override;
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override;

 private:
  struct Slot {
    bool attached = false;
    SamplingParams sampling;
    std::vector<TokenId> allowed_ids;  // empty: all
    std::vector<bool> is_banned;       // by id; empty: none
    std::vector<TokenId> late_ids;     // ascending
    int32_t min_tokens = 0;
    int32_t prompt_tokens = 0;
    TokenId last_token = -1;  // -1: nothing was sampled yet
    std::vector<BlockId> blocks;
  };
  struct Step {
    StepResult result;
    int64_t done_ns;
  };

  void WaitUntil(int64_t time_ns);
  void Apply(const StepPlan& plan);
  void Attach(const SlotAttach& attach);
  void RunSegment(const StepPlan& plan, const Segment& segment, StepResult* result);
  Slot& SlotAt(SlotId id);
  uint64_t& HashAt(const Slot& slot, int32_t position);
  // The token after a row at `position`, whose hash this is; not one of `banned`, which are ascending.
  TokenId Sample(const Slot& slot, int32_t position, absl::Span<const TokenId> banned, uint64_t hash) const;
  // Adds an output with as many alternatives as asked for.
  static void AddOutput(TokenId token, bool logprob, int32_t num_top, uint64_t hash, StepResult* result);

  const SimulatedOptions options_;
  const CostModel cost_;
  BackendInfo info_;
  uint64_t model_hash_;
  BackendLimits limits_{};
  std::vector<Slot> slots_;
  std::vector<uint64_t> hashes_;  // [block][token]: of all tokens up to a position
  Timeline timeline_;
  std::deque<Step> steps_;  // in flight
  StepTicket submitted_ = 0;
  StepTicket collected_ = 0;
};

}  // namespace ridge::worker
