// Who runs in the next step: policy alone, without device, threads or clock.
//
// One forward a step carries the decode rows of all running sequences and packed prefill chunks under a token budget, so
// that a long prompt cannot hold up running sequences for longer than one step of step_tokens rows. Order within the
// budget: decode rows, then prefills already running, then admissions, first come first served. A sequence is admitted
// when a slot and all blocks up to its limit are free, so that a running sequence never waits for memory.
//
// Threads: engine thread only. Ownership: sequences belong to the caller and outlive their stay here.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "worker/backend/step_plan.h"
#include "worker/decision/sequence.h"
#include "worker/memory/block_pool.h"

namespace ridge::worker {

struct SchedulerConfig {
  int32_t max_running;   // slots
  int32_t step_tokens;   // rows of one step; >= max_running
  int32_t chunk_tokens;  // most prefill rows of one sequence in a step; >= 1
};

// A step and who is in it.
struct ScheduledStep {
  StepPlan plan;
  std::vector<Sequence*> sequences;  // one a segment
  std::vector<Sequence*> admitted;   // among them, for the first time
  int32_t decode_rows = 0;
  int32_t prefill_rows = 0;

  bool empty() const { return plan.segments.empty(); }
};

class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockPool* pool);

  // Blocks that a sequence holds at its limit. The last token's own K and V are never needed.
  static int32_t BlocksAtLimit(int64_t prompt_tokens, int64_t max_tokens) {
    return BlocksForTokens(prompt_tokens + max_tokens - 1);
  }

  // Queues a waiting sequence.
  void Add(Sequence* sequence);

  // Takes a waiting or running sequence out; it is not planned again. Its slot and blocks stay until Free.
  void Remove(Sequence* sequence);

  // Gives slot and blocks of a removed sequence back, once no step in flight has rows of it.
  void Free(Sequence* sequence);

  // Writes the next step, empty where there is nothing to run, and advances the planned state of the sequences in it.
  ScheduledStep Plan();

  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int64_t waiting_tokens() const { return waiting_tokens_; }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }

 private:
  void PlanDecodes(ScheduledStep* step);
  void PlanPrefills(int32_t* budget, ScheduledStep* step);
  void PlanAdmissions(int32_t* budget, ScheduledStep* step);
  void PlanChunk(Sequence* sequence, int32_t* budget, ScheduledStep* step);

  const SchedulerConfig config_;
  BlockPool* const pool_;
  std::deque<Sequence*> waiting_;
  int64_t waiting_tokens_ = 0;
  std::vector<Sequence*> running_;  // in the order of admission
  std::vector<SlotId> free_slots_;
  std::vector<SlotId> released_slots_;  // to be told with the next plan
};

}  // namespace ridge::worker
