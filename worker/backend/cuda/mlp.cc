#include "worker/backend/cuda/mlp.h"

#include <utility>

#include "kernels/cuda/matmul.h"

namespace ridge::worker {

namespace cuda = kernels::cuda;

absl::StatusOr<Mlp> Mlp::Create(const ModelConfig& config, const cuda::MatmulDevice& device,
                                cudaStream_t stream) {
  Mlp mlp;
  mlp.shape_ = {config.q_size(), config.hidden_size, config.mlp_size};
  mlp.device_ = device;
  const cuda::MlpPlan plan = mlp.Plan(cuda::kMaxMlpRows);
  if (!plan.possible || cuda::ProbeCooperativeLaunch(plan.blocks, stream) != cudaSuccess) return mlp;
  absl::Status status = CudaStatus(cuda::PrepareMlp(), "MLP");
  if (!status.ok()) return status;
  absl::StatusOr<DeviceMemory> counters =
      DeviceMemory::Allocate(cuda::kMlpCounters * static_cast<int64_t>(sizeof(int32_t)), "MLP workspace");
  if (!counters.ok()) return counters.status();
  status =
      CudaStatus(cudaMemsetAsync(counters->as<void>(), 0, static_cast<size_t>(counters->bytes()), stream),
                 "MLP workspace");
  if (!status.ok()) return status;
  mlp.counters_ = *std::move(counters);
  return mlp;
}

cudaError_t Mlp::Launch(cuda::MlpArgs args, cudaStream_t stream) const {
  args.counters = counters_.as<int32_t>();
  return cuda::LaunchMlp(Plan(args.gate_up.m), args, stream);
}

}  // namespace ridge::worker
