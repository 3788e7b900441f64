// An engine on a simulated card and a virtual clock, with Qwen2.5-1.5B's shape, driven by hand; and what came
// of each request.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "worker/backend/simulated/simulated_backend.h"
#include "worker/loop/engine_core.h"

namespace ridge::worker {

class SimulatedEngine {
 public:
  SimulatedEngine(const std::string& card, const EngineConfig& config);

  // Consecutive ids, from `first_token` on, or from one of its own.
  struct Request {
    int32_t prompt_tokens;
    int32_t max_tokens;
    std::string tenant = "";
    TokenId first_token = -1;
    int64_t arrival_ns = -1;  // now
  };
  SequenceId Add(const Request& request);

  // A turn of the engine; false where it rests.
  bool Step() { return core_.RunOnce().value(); }
  void RunToEnd() {
    while (Step()) {
    }
  }

  EngineCore& core() { return core_; }
  FakeClock& clock() { return clock_; }

  void Cancel(SequenceId id) { core_.Cancel(id, absl::CancelledError("the client left")); }
  // How long the device had to do with all that was submitted.
  int64_t device_ns() const { return backend_.device_ns; }
  // Rows of each submitted step.
  const std::vector<int64_t>& step_rows() const { return backend_.rows; }

  // When each token of a request came; none where it has none.
  const std::vector<int64_t>& token_ns(SequenceId id) { return token_ns_[id]; }
  double TtftMs(SequenceId id) const {
    return static_cast<double>(token_ns_.at(id).front() - arrival_ns_.at(id)) * 1e-6;
  }
  int64_t tokens() const { return tokens_; }
  int64_t requests() const { return static_cast<int64_t>(last_id_); }
  int64_t ended() const { return ended_; }

 private:
  class RecordingBackend : public SimulatedBackend {
   public:
    RecordingBackend(const std::string& card, const SimulatedOptions& options);
    StepTicket Submit(const StepPlan& plan) override;

    int64_t device_ns = 0;
    std::vector<int64_t> rows;

   private:
    const CostModel cost_;
  };

  void Take(const std::vector<OutputItem>& items);

  FakeClock clock_;
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  RecordingBackend backend_;
  EngineCore core_;
  SequenceId last_id_ = 0;
  int64_t tokens_ = 0;
  int64_t ended_ = 0;
  std::map<SequenceId, int64_t> arrival_ns_;
  std::map<SequenceId, std::vector<int64_t>> token_ns_;
};

}  // namespace ridge::worker
