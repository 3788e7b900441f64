// Who runs in the next step: policy alone, without device, threads or clock of its own.
//
// One forward a step carries the decode rows of all running sequences and packed prefill chunks under a token
// budget, so that a long prompt cannot hold up running sequences for longer than one step of step_tokens
// rows. Decode rows come first. What is left of the budget goes to running prefills and admissions: to the
// tenant that was served least, to running before waiting sequences among equals; a flood of long prompts
// does not fill up the steps of others' short ones (flood_limit.h).
//
// Memory is taken on demand: an admission takes the blocks of what is known, beyond a watermark that it
// leaves to running sequences; decoding takes a block when it reaches it. Where none is left, the youngest
// sequence of the lowest priority is preempted: it gives everything back and waits to be computed again. A
// slot or memory is also taken from a tenant that runs more sequences than the one that comes next, or, where
// that one cannot be admitted, than one that runs fewer still: then slots or memory are what is short, and
// not rows. A sequence that was preempted kMaxPreemptions times is admitted with all blocks up to its limit
// and is not preempted again. So the oldest always goes on, and everything ends.
//
// Threads: engine thread only. Ownership: sequences belong to the caller and outlive their stay here.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/step_plan.h"
#include "worker/decision/engine_policy.h"
#include "worker/decision/flood_limit.h"
#include "worker/decision/forks.h"
#include "worker/decision/padding.h"
#include "worker/decision/running_set.h"
#include "worker/decision/sequence.h"
#include "worker/decision/sequence_memory.h"
#include "worker/decision/slots.h"
#include "worker/decision/tenant_shares.h"
#include "worker/decision/waiting_queue.h"
#include "worker/memory/block_pool.h"
#include "worker/memory/prefix_cache.h"

namespace ridge::worker {

struct SchedulerConfig {
  int32_t max_running;       // slots
  int32_t step_tokens;       // rows of one step; >= max_running
  int32_t chunk_tokens;      // most prefill rows of one sequence in a step where prompts are cut; >= 1
  EnginePolicy policy = {};  // the backend's part is not looked at
  int32_t slot_tokens = 0;   // most positions of a sequence; 0: no limit, but kSlots needs one
};

// A step and who is in it.
struct ScheduledStep {
  StepPlan plan;
  std::vector<Sequence*> sequences;  // one a segment
  std::vector<Sequence*> admitted;   // among them, new or again
  int32_t decode_rows = 0;
  int32_t prefill_rows = 0;

  bool empty() const { return plan.segments.empty() && plan.padded_rows == 0; }
};

class Scheduler {
 public:
  // `cache` is not used where the configuration says so.
  Scheduler(const SchedulerConfig& config, BlockPool* pool, PrefixCache* cache);

  // Queues a waiting sequence; of several choices of a request the first one first.
  void Add(Sequence* sequence);

  // Takes a sequence out, whatever its state; it is not planned again. Its slot and blocks stay until Settle.
  void Remove(Sequence* sequence);

  // A step with `rows` rows of the sequence was collected, in the order of submission; before the token that
  // it gave is added to the sequence. Its full blocks become known to the prefix cache.
  void OnCollected(Sequence* sequence, int32_t rows);

  // What OnCollected will need of the step's sequences is asked of memory, for all of them together.
  void PrefetchCollected(const ScheduledStep& step) const;

  // To be called when a sequence may have become free of steps in flight: one that was removed gives slot and
  // blocks back, one that was preempted waits again. Otherwise does nothing.
  void Settle(Sequence* sequence);

  // Writes the next step, empty where there is nothing to run, or nothing before the step in flight was
  // collected; advances the planned state of the sequences in it.
  ScheduledStep Plan(int64_t now_ns);

  int32_t num_waiting() const { return waiting_.size() + forks_.num_held(); }
  int64_t waiting_tokens() const { return waiting_.tokens(); }
  int32_t num_running() const { return running_.size(); }
  int64_t preemptions() const { return preemptions_; }  // from the start
  const PrefixCounters& prefix_counters() const { return memory_.counters(); }

  // Aborts where blocks, slots or states do not add up. `sequences`: all that were added and not yet settled.
  void CheckInvariant(const std::vector<const Sequence*>& sequences) const;

 private:
  ScheduledStep TryPlan(int64_t now_ns);
  // Finds who may have another tenant's slot. True where that comes back with the step in flight.
  bool ReclaimSlot(int64_t now_ns);
  void PlanDecodes(ScheduledStep* step);
  // Makes room for the next decode row of every running sequence that can have it.
  void ReserveDecodes(ScheduledStep* step);
  bool ReserveDecode(Sequence* sequence, ScheduledStep* step);
  void AddDecodes(ScheduledStep* step);
  void PlanPrompts(int64_t now_ns, ScheduledStep* step);
  void PlanChunks(int64_t now_ns, int32_t budget, ScheduledStep* step);
  // Fills the slots where the last batch has drained.
  void AdmitBatch(int64_t now_ns, ScheduledStep* step);
  // `refused`: null, or one that came before in this plan and has to wait.
  Sequence* NextWaiting(int64_t now_ns, const Sequence* refused = nullptr) const;
  bool Admit(Sequence* sequence, ScheduledStep* step);
  bool TakeBlocks(Sequence* sequence, ScheduledStep* step);
  // Whether the tenant has more to prefill than a step takes.
  bool Floods(const Tenant& tenant) const;
  // Adds as much of a prompt as goes into `most` rows; returns how many it took.
  int32_t PlanChunk(Sequence* sequence, int32_t most, ScheduledStep* step);
  void AddSegment(Segment segment, Sequence* sequence, ScheduledStep* step);

  void Preempt(Sequence* sequence);
  void GiveBack(Sequence* sequence);
  void WaitAgain(Sequence* sequence);
  // The batch has drained: gives back what its finished sequences held.
  void ReleaseBatch();
  bool Preempts() const { return config_.policy.memory == MemoryPolicy::kOnDemand; }
  // Whether memory or slots come back without anyone being preempted.
  bool SomeWillFree() const;

  const SchedulerConfig config_;
  BlockPool* const pool_;
  SequenceMemory memory_;
  const int32_t watermark_;  // blocks that admissions leave to running sequences
  Slots slots_;
  TenantShares tenants_;
  WaitingQueue waiting_;
  Forks forks_;
  RunningSet running_;
  Padding padding_;
  FloodLimit flood_limit_;
  Sequence* claimant_ = nullptr;  // waits; what was taken for it is not another's
  int32_t unsettled_ = 0;         // preempted or finished with steps in flight: what they hold comes back
  int64_t preemptions_ = 0;

  Sequence* only_ = nullptr;       // the one that runs, where it is one at a time
  int64_t now_ns_ = 0;             // of the plan that is being written
  bool last_was_prefill_ = false;  // of separate steps
};

}  // namespace ridge::worker
