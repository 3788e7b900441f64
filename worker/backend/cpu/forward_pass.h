// The model's forward pass over the rows of one step, on the threads of a pool.
//
// Threads: Run and Logits are called by the compute thread, which is the pool's thread 0. The pool is woken
// once for each; inside, every thread goes through all layers with its own share of each operation, and
// barriers stand between what depends on each other. Ownership: borrows weights and pool; owns the KV memory
// and all working memory, which is allocated once. Every row's values depend on its own sequence alone: the
// kernels fix the order of each sum whatever the rows and threads beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kernels/cpu/thread_pool.h"
#include "worker/backend/cpu/kv_pool.h"
#include "worker/backend/cpu/packed_weights.h"
#include "worker/backend/cpu/paged_attention.h"
#include "worker/backend/cpu/step_rows.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

class ForwardPass {
 public:
  // Output rows whose logits exist at a time: bounds their memory.
  static constexpr int32_t kLogitRows = 64;

  ForwardPass(const ModelConfig& config, const PackedWeights* weights, kernels::cpu::ThreadPool* pool,
              KvPool kv, int32_t max_rows, bool split_attention);

  void CopyBlock(const BlockCopy& copy) { attention_.CopyBlock(copy); }

  // Takes the rows through all layers: writes their K and V, leaves the residual stream for Logits.
  void Run(const StepRows& rows);

  // The raw logits [outputs.size()][vocab] of at most kLogitRows rows of the last Run. Valid until the next
  // call.
  absl::Span<const float> Logits(absl::Span<const OutputRow> outputs);

  // Values that fp16 could not hold and that were set to its largest, since the start.
  int64_t saturations() const;

 private:
  // Rows that every thread normalises for itself, which is cheaper than waiting for each other.
  static constexpr int64_t kFewRows = 4;

  // What each thread has for itself, on cache lines of its own.
  struct alignas(64) ThreadState {
    std::vector<float> scratch;
    std::vector<float> normed;  // [kFewRows][hidden]
    int64_t saturations = 0;
  };

  void RunThread(const StepRows& rows, int thread);
  void AttentionLayer(int32_t layer, const StepRows& rows, int thread);
  void MlpLayer(int32_t layer, int64_t num_rows, int thread);
  // The normalised rows that `row_at` gives, [num_rows][hidden]; complete when it returns.
  const float* Norm(const std::vector<float>& weight, int64_t num_rows, int thread,
                    absl::FunctionRef<const float*(int64_t)> row_at);
  const float* NormResidual(const std::vector<float>& weight, int64_t num_rows, int thread);
  // Asks memory for the first lines of this thread's share.
  void PrefetchPanels(const PackedMatrix& matrix, int thread);
  // This thread's share of y = matrix x (+ bias), or y += matrix x. y has rows of matrix.n. `next` is the
  // matrix that the thread will read next.
  void Multiply(const PackedMatrix& matrix, const float* x, const std::vector<float>* bias, bool accumulate,
                int64_t num_rows, float* y, int thread, const PackedMatrix* next);
  ThreadState& state(int thread) { return threads_[static_cast<size_t>(thread)]; }

  const ModelConfig config_;
  const PackedWeights& weights_;
  kernels::cpu::ThreadPool& pool_;
  PagedAttention attention_;
  std::vector<ThreadState> threads_;

  std::vector<float> residual_;  // [rows][hidden]
  std::vector<float> normed_;    // [rows][hidden]
  std::vector<float> qkv_;       // [rows][q | k | v]
  std::vector<float> attended_;  // [rows][q_size]
  std::vector<float> gate_;      // [rows][mlp]; then SiLU(gate) * up
  std::vector<float> up_;        // [rows][mlp]
  std::vector<float> logits_;    // [kLogitRows][vocab]
};

}  // namespace ridge::worker
