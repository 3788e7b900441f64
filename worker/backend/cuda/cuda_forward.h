// The model's forward pass on the card: enqueues the kernels of a step, and remembers nothing of it.
//
// Threads: the engine thread. Ownership: borrows the weights; owns KV pool, slots' state and all working
// memory, allocated once. Nothing here waits for the card or allocates after Create, so that a step can be
// captured as a graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/control_memory.h"
#include "worker/backend/cuda/cublas_lt.h"
#include "worker/backend/cuda/cuda_weights.h"
#include "worker/backend/cuda/decode_layers.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/mlp.h"
#include "worker/backend/cuda/step_upload.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

// What a step leaves in device memory and the host copies back, in this order: saturations so far (uint64_t),
// tokens (int32_t [outputs]), log-probabilities (float [outputs]).
inline constexpr int64_t ResultBytes(int64_t outputs) {
  return 8 + outputs * 8;
}

class CudaForward {
 public:
  // Output rows whose logits exist at a time: bounds their memory.
  static constexpr int32_t kLogitRows = 256;

  // All memory but the KV pool's. `cublas` does the matmuls where it is not null; the weights are row-major
  // then. `decode_layers`: one kernel takes all layers where
  // it can.
  static absl::StatusOr<std::unique_ptr<CudaForward>> Create(const ModelConfig& config,
                                                             const CudaWeights* weights, CublasLt* cublas,
                                                             const kernels::cuda::DeviceInfo& device,
                                                             const BackendLimits& limits,
                                                             bool split_attention, bool decode_layers,
                                                             cudaStream_t stream);

  // The KV pool, zeroed; in place of what was there. Before the first Run; graphs that were captured before
  // are void.
  absl::Status ReserveKv(int32_t num_blocks, cudaStream_t stream);

  const kernels::cuda::AttentionPlanLimits& attention_limits() const { return attention_limits_; }

  // Brings the slots' state up to date. `upload` is device memory.
  absl::Status ApplyChanges(const StepLayout& layout, const char* upload, cudaStream_t stream);

  // The same for penalties, biases and masks; see ControlMemory::Apply.
  absl::Status ApplyControls(const StepPlan& plan, PinnedMemory* staging, cudaStream_t stream) {
    return controls_.Apply(plan, staging, stream);
  }
  int64_t usual_control_bytes() const { return controls_.UsualStagingBytes(config_.context_length); }
  // In the plan's order.
  absl::Status CopyBlocks(const StepPlan& plan, cudaStream_t stream);

  // Computes the rows and samples the outputs, to `results` (see ResultBytes; device memory). Where
  // `host_logits` is not null, the raw logits of all outputs go there too, [outputs][vocab].
  absl::Status Run(const StepLayout& layout, const char* upload, char* results, float* host_logits,
                   cudaStream_t stream);

  // Of an extended step: [outputs][kMaxTopLogprobs].
  const kernels::cuda::TopLogprob* top() const { return top_.as<kernels::cuda::TopLogprob>(); }
  // Swaps into `to` the names of the kernels and copies that were enqueued since the last call, in order,
  // those of penalties, biases and masks left out.
  void TakeLaunches(std::vector<const char*>* to);
  // Of everything but the KV pool.
  int64_t workspace_bytes() const {
    return workspace_bytes_ + controls_.bytes() + decode_layers_.bytes() + mlp_.bytes();
  }
  // How decode steps of few rows are done.
  std::string DecodeLayersPlan() const { return decode_layers_.ToString(); }

 private:
  CudaForward(const ModelConfig& config, const CudaWeights* weights, CublasLt* cublas,
              const kernels::cuda::DeviceInfo& device);

  unsigned long long* saturations() const { return reinterpret_cast<unsigned long long*>(results_); }

  // Says in attention_limits_ what LaunchAttentionChunk and the matmul behind it can take.
  void LimitChunks();
  absl::Status Allocate(const BackendLimits& limits, cudaStream_t stream);
  int64_t MatmulWorkspace(int32_t max_rows, int64_t* counter_bytes) const;

  kernels::cuda::RopeKvArgs RopeKv(const StepLayout& layout, const char* upload,
                                   const kernels::cuda::KvLayer& kv) const;
  void Qkv(const StepLayout& layout, const char* upload, const CudaLayer& layer,
           const kernels::cuda::KvLayer& kv, cudaStream_t stream);
  void Attention(const StepLayout& layout, const char* upload, const kernels::cuda::KvLayer& kv,
                 cudaStream_t stream);
  // Embedding and layers, kernel by kernel.
  void Layers(const StepLayout& layout, const char* upload, cudaStream_t stream);
  void Logits(const StepLayout& layout, const char* upload, float* host_logits, cudaStream_t stream);
  // `norm` null: x is `input`; else RMSNorm of the residual stream with these weights.
  void Multiply(const char* name, const CudaMatrix& matrix, const Half* input, const float* norm,
                int32_t rows, kernels::cuda::MatmulArgs args, cudaStream_t stream);
  // The same with cuBLASLt: what our matmuls do besides is done by kernels before and behind.
  void MultiplyByLibrary(const char* name, const CudaMatrix& matrix, const Half* input, const float* norm,
                         int32_t rows, const kernels::cuda::MatmulArgs& args, cudaStream_t stream);
  // What is behind attention in a layer, where mlp_ takes it.
  void BehindAttention(const CudaLayer& layer, int32_t rows, cudaStream_t stream);
  kernels::cuda::RmsNormArgs NormArgs(const float* weight, const int32_t* row_list, int32_t rows) const;
  // RMSNorm of the residual stream's rows (those of `row_list` where it is not null) to normed_. Takes the
  // chunks that a matmul left.
  void Norm(const float* weight, const int32_t* row_list, int32_t rows, cudaStream_t stream);
  void Check(cudaError_t error, const char* kernel);  // of a launch

  const ModelConfig config_;
  const CudaWeights& weights_;
  CublasLt* const cublas_;  // null: our kernels
  const kernels::cuda::MatmulDevice device_;
  const int64_t logit_stride_;
  kernels::cuda::AttentionPlanLimits attention_limits_;
  int32_t table_stride_ = 0;
  int64_t workspace_bytes_ = 0;
  absl::Status status_;      // of the call in progress
  char* results_ = nullptr;  // of it too
  std::vector<const char*> launches_;
  int32_t num_partials_ = 0;  // chunks of a matmul that the next norm adds to the residual stream
  int32_t partial_rows_ = 0;

  ControlMemory controls_;
  DecodeLayers decode_layers_;
  Mlp mlp_;
  DeviceMemory top_;
  DeviceMemory kv_pool_, block_tables_, slot_sampling_, last_tokens_, cosines_, sines_;
  DeviceMemory residual_, normed_, qkv_, query_, attention_, gated_, best_, logits_;
  DeviceMemory wide_;  // cuBLASLt's sums of q, k and v or of gate and up
  DeviceMemory matmul_workspace_, matmul_counters_, attention_partials_, attention_counters_,
      sampling_workspace_;
};

}  // namespace ridge::worker
