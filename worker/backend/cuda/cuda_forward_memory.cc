// The memory of the forward pass: all of it, at the start.
#include <algorithm>
#include <utility>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/sampling.h"
#include "kernels/rope_table.h"
#include "worker/backend/cuda/cuda_forward.h"

namespace ridge::worker {

namespace cuda = kernels::cuda;

int64_t CudaForward::MatmulWorkspace(int32_t max_rows, int64_t* counter_bytes) const {
  const CudaLayer& layer = weights_.layers().front();
  int64_t bytes = 16;
  *counter_bytes = 16;
  for (const CudaMatrix& matrix :
       {layer.qkv, layer.attention_output, layer.gate_up, layer.down, weights_.output()}) {
    for (int32_t rows = 1; rows <= max_rows; ++rows) {
      // As if any of them could leave chunks.
      const cuda::MatmulPlan plan =
          cuda::PlanMatmul(rows, matrix.n, matrix.k, device_, cuda::MatmulOutput::kPartials);
      bytes = std::max(bytes, cuda::MatmulWorkspaceBytes(plan, rows, matrix.n, matrix.k));
      *counter_bytes = std::max(*counter_bytes, cuda::MatmulCounterBytes(plan, rows, matrix.n));
    }
  }
  // What mlp_ leaves.
  const int64_t chunks = std::max(cuda::NumChunks(layer.attention_output.k), cuda::NumChunks(layer.down.k));
  const int64_t rows = std::min(max_rows, cuda::kMaxMlpRows);
  return std::max(bytes, chunks * rows * config_.hidden_size * static_cast<int64_t>(sizeof(float)));
}

absl::Status CudaForward::ReserveKv(int32_t num_blocks, cudaStream_t stream) {
  kv_pool_ = DeviceMemory();
  absl::StatusOr<DeviceMemory> pool =
      DeviceMemory::Allocate(config_.kv_bytes_per_token() * kBlockTokens * num_blocks, "KV cache");
  if (!pool.ok()) return pool.status();
  kv_pool_ = *std::move(pool);
  return CudaStatus(cudaMemsetAsync(kv_pool_.as<void>(), 0, static_cast<size_t>(kv_pool_.bytes()), stream),
                    "KV cache");
}

absl::Status CudaForward::Allocate(const BackendLimits& limits, cudaStream_t stream) {
  const int32_t max_rows = limits.max_step_rows;
  const int64_t rows = max_rows, slots = limits.max_slots, logit_rows = std::min(max_rows, kLogitRows);
  table_stride_ = (config_.context_length + kBlockTokens - 1) / kBlockTokens;
  int64_t counter_bytes = 0;
  const int64_t workspace_bytes = MatmulWorkspace(max_rows, &counter_bytes);
  const struct {
    DeviceMemory* memory;
    int64_t bytes;
    const char* what;
  } parts[] = {
      {&block_tables_, slots * table_stride_ * 4, "block tables"},
      {&slot_sampling_, slots * static_cast<int64_t>(sizeof(cuda::SlotSampling)), "slots"},
      {&last_tokens_, slots * 4, "slots"},
      {&top_, rows * cuda::kMaxTopLogprobs * static_cast<int64_t>(sizeof(cuda::TopLogprob)), "results"},
      {&residual_, rows * config_.hidden_size * 4, "activations"},
      {&normed_, rows * config_.hidden_size * 2, "activations"},
      {&qkv_, config_.qk_norm ? rows * (config_.q_size() + 2 * config_.kv_size()) * 4 : 16, "activations"},
      {&query_, rows * config_.q_size() * 2, "activations"},
      {&attention_, rows * config_.q_size() * 2, "activations"},
      {&gated_, rows * config_.mlp_size * 2, "activations"},
      {&best_, cuda::kMaxArgMaxRows * 8, "arg max"},
      {&logits_, logit_rows * logit_stride_ * 4, "logits"},
      {&matmul_workspace_, workspace_bytes, "matmul workspace"},
      {&matmul_counters_, counter_bytes, "matmul workspace"},
      {&attention_partials_,
       static_cast<int64_t>(cuda::AttentionPartialBytes(attention_limits_.max_partials, config_.num_kv_heads,
                                                        config_.head_dim)),
       "attention workspace"},
      {&attention_counters_,
       static_cast<int64_t>(
           cuda::AttentionCounterBytes(attention_limits_.max_shared_tiles, config_.num_kv_heads)),
       "attention workspace"},
      {&sampling_workspace_,
       static_cast<int64_t>(
           cuda::SamplingWorkspaceBytes(static_cast<int32_t>(logit_rows), config_.vocab_size)),
       "sampling workspace"},
      {&wide_,
       cublas_ == nullptr
           ? 16
           : rows * std::max(2 * config_.mlp_size, config_.q_size() + 2 * config_.kv_size()) * 4,
       "activations"},
  };
  for (const auto& part : parts) {
    absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(part.bytes, part.what);
    if (!memory.ok()) return memory.status();
    *part.memory = *std::move(memory);
    workspace_bytes_ += part.bytes;
    // Counters must be zero; the rest must not hold a NaN that padding could meet.
    absl::Status status = CudaStatus(
        cudaMemsetAsync(part.memory->as<void>(), 0, static_cast<size_t>(part.bytes), stream), part.what);
    if (!status.ok()) return status;
  }
  absl::StatusOr<ControlMemory> controls =
      ControlMemory::Create(limits.max_slots, config_.vocab_size, logit_stride_, stream);
  if (!controls.ok()) return controls.status();
  controls_ = *std::move(controls);
  const kernels::RopeTable rope = kernels::MakeRopeTable(config_.rope_theta, config_.head_dim,
                                                         config_.rope_divisors, config_.context_length);
  for (const auto& [memory, values] :
       {std::pair(&cosines_, &rope.cosines), std::pair(&sines_, &rope.sines)}) {
    const size_t bytes = values->size() * sizeof(float);
    absl::StatusOr<DeviceMemory> table = DeviceMemory::Allocate(static_cast<int64_t>(bytes), "RoPE table");
    if (!table.ok()) return table.status();
    *memory = *std::move(table);
    workspace_bytes_ += memory->bytes();
    absl::Status status = CopyToDevice(memory->as<void>(), values->data(), bytes, "RoPE table", stream);
    if (!status.ok()) return status;
  }
  return CudaStatus(cudaStreamSynchronize(stream), "memory");
}

}  // namespace ridge::worker
