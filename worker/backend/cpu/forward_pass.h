// The model's forward pass over the rows of one step, on the threads of a pool.
//
// Threads: Run and Logits are called by the compute thread, which is the pool's thread 0. Ownership: borrows
// weights and pool; owns the KV memory and all working memory, which is allocated once. Every row's values
// depend on its own sequence alone: the kernels fix the order of each sum whatever the rows and threads
// beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/rope_table.h"
#include "worker/backend/cpu/kv_pool.h"
#include "worker/backend/cpu/packed_weights.h"
#include "worker/backend/cpu/step_rows.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

class ForwardPass {
 public:
  // Output rows whose logits exist at a time: bounds their memory.
  static constexpr int32_t kLogitRows = 64;

  ForwardPass(const ModelConfig& config, const PackedWeights* weights, kernels::cpu::ThreadPool* pool,
              KvPool kv, int32_t max_rows);

  // Takes the rows through all layers: writes their K and V, leaves the residual stream for Logits.
  void Run(const StepRows& rows);

  // The raw logits [outputs.size()][vocab] of at most kLogitRows rows of the last Run. Valid until the next
  // call.
  absl::Span<const float> Logits(absl::Span<const OutputRow> outputs);

  // Values that fp16 could not hold and that were set to its largest, since the start.
  int64_t saturations() const;

 private:
  // What each thread has for itself, on cache lines of its own.
  struct alignas(64) ThreadState {
    std::vector<float> scratch;
    int64_t saturations = 0;
  };

  // Some rows of a run and one KV head: a thread's smallest share of attention.
  struct AttentionUnit {
    int32_t run;
    int32_t first_row;  // within the run
    int32_t num_rows;
    int32_t head;
    int64_t cost_before;  // keys times rows of the units before
  };

  void PlanAttention(const StepRows& rows);
  void AttentionLayer(int32_t layer, const StepRows& rows);
  void StoreKv(int32_t layer, const StepRows& rows, int64_t row, ThreadState& state);
  void Attend(int32_t layer, const StepRows& rows, int thread);
  void MlpLayer(int32_t layer, int64_t num_rows);
  void Norm(const std::vector<float>& weight, int64_t num_rows);
  // Calls task(item, state) for 0 .. count - 1, shared out in order.
  void ForEach(int64_t count, const std::function<void(int64_t, ThreadState&)>& task);
  // y = matrix x (+ bias), or y += matrix x. y has rows of y_stride.
  void Multiply(const PackedMatrix& matrix, const float* x, const std::vector<float>* bias, bool accumulate,
                int64_t num_rows, float* y);

  const ModelConfig config_;
  const PackedWeights& weights_;
  kernels::cpu::ThreadPool& pool_;
  const KvPool kv_;
  const kernels::RopeTable rope_;
  std::vector<ThreadState> threads_;
  std::vector<AttentionUnit> units_;
  int64_t attention_cost_ = 0;

  std::vector<float> residual_;   // [rows][hidden]
  std::vector<float> normed_;     // [rows][hidden]
  std::vector<float> qkv_;        // [rows][q | k | v]
  std::vector<float> query_;      // [rows][q_size], rotated
  std::vector<float> attention_;  // [rows][q_size]
  std::vector<float> gate_;       // [rows][mlp]; then SiLU(gate) * up
  std::vector<float> up_;         // [rows][mlp]
  std::vector<float> logits_;     // [kLogitRows][vocab]
};

}  // namespace ridge::worker
