// The model on the CPU: fp16 weights and KV, fp32 sums, every core of the machine.
//
// One compute thread runs submitted steps in order, together with the threads of its pool; Submit and Collect
// only pass steps to it and back. Slot state and working memory belong to the compute thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/thread_pool.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/forward_pass.h"
#include "worker/backend/cpu/packed_weights.h"
#include "worker/backend/cpu/slot_table.h"
#include "worker/backend/cpu/step_rows.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

struct CpuOptions {
  int threads = 0;              // >= 1, the compute thread included; 0: one a core that this process may use
  bool pin_threads = false;     // each to a core of its own
  bool split_attention = true;  // threads share a decode row's K and V where that is faster, not one pass
};

class CpuBackend : public Backend {
 public:
  // Packs the weights; the source is not needed afterwards. Errors of the source; UNIMPLEMENTED where the
  // machine or the model lacks what the kernels need; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const WeightSource& source,
                                                            const CpuOptions& options);

  // Steps that were not collected are dropped.
  ~CpuBackend() override;

  const BackendInfo& Info() const override { return info_; }
  absl::Status Reserve(int32_t num_blocks, const BackendLimits& limits) override;
  StepTicket Submit(const StepPlan& plan) override;
  void WaitFor(StepTicket ticket, int64_t most_ns) override;
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override;

  // Activations that fp16 could not hold and that were set to its largest value, since the start. From any
  // thread.
  int64_t saturations() const { return saturations_.load(std::memory_order_relaxed); }

 private:
  struct Step {
    StepPlan plan;
    StepResult result;
  };

  CpuBackend(const WeightSource& source, const CpuOptions& options,
             std::unique_ptr<kernels::cpu::ThreadPool> pool, PackedWeights weights);

  void Compute();
  void RunStep(const StepPlan& plan, StepResult* result);
  // Chooses the tokens of outputs [begin, begin + count), whose logits are given, and writes them to their
  // places in the result.
  void Sample(const StepPlan& plan, size_t begin, size_t count, absl::Span<const float> logits,
              StepResult* result);
  struct SamplingScratch {
    std::vector<int32_t> ids;
    std::vector<float> logits;
  };
  TokenId SampleToken(const StepPlan& plan, const OutputRow& output, absl::Span<const float> logits,
                      SamplingScratch* scratch) const;
  void Report(const OutputRow& output, TokenId token, absl::Span<const float> logits,
              SamplingScratch* scratch, RowOutput* row, TokenLogprob* top) const;

  const ModelConfig config_;
  const CpuOptions options_;
  BackendInfo info_;
  BackendLimits limits_{};
  std::unique_ptr<kernels::cpu::ThreadPool> pool_;
  const PackedWeights weights_;

  // Of the compute thread, once Reserve was called.
  std::unique_ptr<SlotTable> slots_;
  std::unique_ptr<ForwardPass> forward_;
  StepRows rows_;
  std::vector<SamplingScratch> sampling_scratch_;  // one a thread

  std::atomic<int64_t> saturations_{0};
  StepTicket submitted_ = 0;  // of the engine thread
  StepTicket collected_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, as is what follows; in order. They and the steps' memory are kept, so that the compute
  // thread allocates nothing.
  std::vector<std::unique_ptr<Step>> waiting_;
  std::vector<std::unique_ptr<Step>> done_;
  std::vector<std::unique_ptr<Step>> unused_;
  size_t num_steps_ = 0;  // that there are
  bool stopping_ = false;
  std::thread compute_thread_;
};

}  // namespace ridge::worker
