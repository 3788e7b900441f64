// The layers of a decode step of few rows by one kernel (kernels/cuda/decode_layers.h), where card and model
// allow it.
//
// Threads: the engine thread. Owns the kernel's workspace and its table of layers; borrows the weights.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/decode_layers.h"
#include "kernels/cuda/device.h"
#include "worker/backend/cuda/cuda_weights.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/step_upload.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

class DecodeLayers {
 public:
  DecodeLayers() = default;  // takes no step

  // Where card or model do not allow the kernel, one that takes no step; also where a test launch says that
  // the card has no room for all its blocks at once (MPS and MIG give a process a part of it).
  static absl::StatusOr<DecodeLayers> Create(const ModelConfig& config, const CudaWeights& weights,
                                             const kernels::cuda::DeviceInfo& device, cudaStream_t stream);

  // Whether it does the step's layers.
  bool Takes(const StepLayout& layout) const;

  // Enqueues them. `rope`: as for the QKV matmul, of layer 0; `kv_layer_stride`: elements from one layer's KV
  // memory to the next one's.
  cudaError_t Launch(const StepLayout& layout, const char* upload, const kernels::cuda::RopeKvArgs& rope,
                     int64_t kv_layer_stride, const int32_t* last_tokens, float* residual,
                     cudaStream_t stream) const;

  int64_t bytes() const { return workspace_.bytes() + table_.bytes(); }
  // How a step of one row is done, and what stood against the kernel.
  std::string ToString() const;

 private:
  kernels::cuda::DecodeLayersPlan Plan(int32_t rows) const {
    return kernels::cuda::PlanDecodeLayers(rows, shape_, device_);
  }

  kernels::cuda::DecodeLayersShape shape_{};
  kernels::cuda::DecodeLayersDevice device_{};
  const Half* embedding_ = nullptr;
  float norm_eps_ = 0.0f;
  std::string refusal_;  // why a card that knows the kernel does not take it
  DeviceMemory workspace_, table_;
};

}  // namespace ridge::worker
