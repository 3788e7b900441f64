// The layers' MLP in steps of a batch of decode rows by one kernel (kernels/cuda/mlp.h), where the model and
// the card allow it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mlp.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

// Not thread-safe: its launches share memory and must not overlap.
class Mlp {
 public:
  Mlp() = default;  // takes nothing

  // One that takes nothing where the kernel's blocks, which wait for each other, do not all fit at once.
  static absl::StatusOr<Mlp> Create(const ModelConfig& config, const kernels::cuda::MatmulDevice& device,
                                    cudaStream_t stream);

  bool Takes(int32_t rows) const { return counters_.bytes() > 0 && Plan(rows).possible; }
  // Whether attention's output matmul, too.
  bool TakesProjection(int32_t rows) const { return Plan(rows).project_units > 0; }
  // REQUIRES: Takes(args.gate_up.m). Fills in the counters.
  cudaError_t Launch(kernels::cuda::MlpArgs args, cudaStream_t stream) const;

  int64_t bytes() const { return counters_.bytes(); }

 private:
  kernels::cuda::MlpPlan Plan(int32_t rows) const { return kernels::cuda::PlanMlp(rows, shape_, device_); }

  kernels::cuda::MlpShape shape_{};
  kernels::cuda::MatmulDevice device_{};
  DeviceMemory counters_;
};

}  // namespace ridge::worker
