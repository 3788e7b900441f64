// The engine's loop without its threads: takes sequences in, plans steps, submits them one ahead, collects
// them and passes the tokens on. Runs on any clock and any backend, so that tests drive it by hand.
//
// Threads: one thread calls everything. Ownership: owns its sequences; the rest outlives it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/backend/backend.h"
#include "worker/decision/scheduler.h"
#include "worker/decision/sequence.h"
#include "worker/loop/engine.h"
#include "worker/loop/engine_metrics.h"
#include "worker/loop/output_thread.h"
#include "worker/loop/step_times.h"
#include "worker/memory/block_pool.h"
#include "worker/memory/prefix_cache.h"

namespace ridge::worker {

// What all steps together cost, as the backend counted it.
struct EngineTotals {
  int64_t steps = 0;
  int64_t rows = 0;         // put through the model
  int64_t padded_rows = 0;  // among them, those of nobody
  int64_t kv_positions = 0;
  int64_t launches = 0;
};

class EngineCore {
 public:
  // `deliver` takes what a step gave to the streams.
  EngineCore(const EngineConfig& config, Backend* backend, Clock* clock, EngineMetrics* metrics,
             std::function<void(std::vector<OutputItem>)> deliver);

  // A request with one choice.
  void Add(std::unique_ptr<Sequence> sequence);
  // A request with several, which share their output and have its id, the next one, and so on.
  void Add(std::vector<std::unique_ptr<Sequence>> choices);

  // Ends a request with an error, by the id of its first choice; unknown ids are ignored, since it may have
  // ended meanwhile.
  void Cancel(SequenceId id, const absl::Status& why);

  // A stop string ended the sequence: its sink already knows.
  void FinishStopped(SequenceId id);

  void CancelAll(const absl::Status& why);

  // Ends what is past its time and submits steps, as many as may be in flight. The successor of a long step
  // is planned only when that is about to end, so that who arrives meanwhile is in it.
  void BeginSteps();

  // Collects the oldest step in flight, or waits until its successor is to be planned; false where there is
  // none. An error means that the device is lost.
  absl::StatusOr<bool> FinishStep();

  // Both: a turn. Who arrives is added between two.
  absl::StatusOr<bool> RunOnce() {
    BeginSteps();
    return FinishStep();
  }

  EngineLoad Load() const;
  const EngineTotals& totals() const { return totals_; }

  // Aborts where sequences, slots and blocks do not add up. Linear in the number of blocks.
  void CheckInvariant() const;

 private:
  // A step's outputs, one after the other.
  class OutputReader {
   public:
    explicit OutputReader(const StepResult& result) : result_(result) {}

    const RowOutput& Next();
    // The most likely tokens of the row that Next gave last.
    std::vector<TokenLogprob> Top() const;
    bool at_end() const { return next_ == result_.outputs.size() && top_end_ == result_.top.size(); }

   private:
    const StepResult& result_;
    size_t next_ = 0;
    size_t top_begin_ = 0;  // of the last row
    size_t top_end_ = 0;
  };
  struct InFlightStep {
    StepTicket ticket;
    ScheduledStep step;
    StepCounts counts;
    int64_t submitted_ns;
    int64_t expected_ns;  // how long it takes
    bool is_ending = false;
  };

  // What there is of a request as long as a choice of it did not end.
  struct Request {
    std::vector<Sequence*> choices;
    int64_t deadline_ns;
    bool admitted = false;  // one of its choices was, whether that ended or not
  };

  void EndExpired();
  void SubmitSteps();
  size_t MostInFlight() const { return config_.policy.launch == LaunchPolicy::kGraph ? 2 : 1; }
  // How long it is until the successor of the only step in flight is to be planned; 0: now.
  int64_t NsUntilSuccessor() const;
  absl::Status CollectStep();
  // Both take what they use of a step's outputs, in their order.
  void TakeScores(Sequence* sequence, const Segment& segment, OutputReader* outputs,
                  std::vector<OutputItem>* items);
  void TakeToken(Sequence* sequence, OutputReader* outputs, int64_t now_ns, std::vector<OutputItem>* items);
  // Takes the sequence out of the schedule. It still holds its slot and blocks.
  void End(Sequence* sequence);
  // Lets go of what the sequence holds where no step in flight has rows of it, and of the sequence if it
  // ended.
  void Settle(Sequence* sequence);
  void ReportLoad();

  const EngineConfig config_;
  Backend* const backend_;
  Clock* const clock_;
  EngineMetrics* const metrics_;
  const std::function<void(std::vector<OutputItem>)> deliver_;

  BlockPool pool_;
  PrefixCache cache_;
  Scheduler scheduler_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  absl::flat_hash_map<SequenceId, Request> requests_;   // by the id of their first choice
  std::set<std::pair<int64_t, SequenceId>> deadlines_;  // of requests that have one and did not end
  // When each request must have been admitted, in the order of arrival, where there is such a limit.
  std::deque<std::pair<int64_t, SequenceId>> queue_limits_;
  std::deque<InFlightStep> in_flight_;
  StepTimes step_times_;
  int64_t last_collected_ns_ = 0;
  EngineTotals totals_;
};

}  // namespace ridge::worker
