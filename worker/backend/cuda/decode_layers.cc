#include "worker/backend/cuda/decode_layers.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/matmul.h"

namespace ridge::worker {

namespace cuda = kernels::cuda;

absl::StatusOr<DecodeLayers> DecodeLayers::Create(const ModelConfig& config, const CudaWeights& weights,
                                                  const cuda::DeviceInfo& device, cudaStream_t stream) {
  DecodeLayers layers;
  layers.shape_ = {config.num_layers,   config.hidden_size, config.mlp_size, config.num_heads,
                   config.num_kv_heads, config.head_dim,    config.qk_norm};
  layers.device_ = {device.num_sms, static_cast<int32_t>(device.shared_bytes_per_block), cuda::HasWgmma()};
  layers.embedding_ = weights.embedding().packed;
  layers.norm_eps_ = config.norm_eps;
  if (!layers.Plan(1).possible) return layers;
  // The blocks wait for each other. What they may all run on is the same for as long as this process has its
  // context.
  const int32_t blocks = layers.Plan(1).blocks;
  if (const cudaError_t error = cuda::ProbeCooperativeLaunch(blocks, stream); error != cudaSuccess) {
    layers.refusal_ = absl::StrFormat(": %d blocks at once: %s", blocks, cudaGetErrorName(error));
    return layers;
  }
  if (absl::Status status = CudaStatus(cuda::PrepareDecodeLayers(), "decode layers"); !status.ok())
    return status;

  std::vector<cuda::DecodeLayerWeights> table;
  for (const CudaLayer& layer : weights.layers()) {
    table.push_back({layer.attention_norm, layer.qkv.packed, layer.qkv_bias, layer.attention_output.packed,
                     layer.mlp_norm, layer.gate_up.packed, layer.down.packed});
  }
  const size_t table_bytes = table.size() * sizeof(table.front());
  absl::StatusOr<DeviceMemory> memory =
      DeviceMemory::Allocate(static_cast<int64_t>(table_bytes), "table of layers");
  if (!memory.ok()) return memory.status();
  layers.table_ = *std::move(memory);
  memory = DeviceMemory::Allocate(cuda::DecodeLayersWorkspaceBytes(layers.shape_, device.num_sms),
                                  "decode workspace");
  if (!memory.ok()) return memory.status();
  layers.workspace_ = *std::move(memory);
  absl::Status status =
      CopyToDevice(layers.table_.as<void>(), table.data(), table_bytes, "table of layers", stream);
  if (status.ok()) {
    status = CudaStatus(
        cuda::LaunchClearDecodeLayers(layers.workspace_.as<void>(), layers.shape_, device.num_sms, stream),
        "decode workspace");
  }
  if (!status.ok()) return status;
  return layers;
}

bool DecodeLayers::Takes(const StepLayout& layout) const {
  // Without an item there is no row that everything would wait for.
  return workspace_.bytes() > 0 && layout.attention != cuda::AttentionMode::kGeneral &&
         layout.split_count > 0 && Plan(layout.num_rows).possible;
}

cudaError_t DecodeLayers::Launch(const StepLayout& layout, const char* upload, const cuda::RopeKvArgs& rope,
                                 int64_t kv_layer_stride, const int32_t* last_tokens, float* residual,
                                 cudaStream_t stream) const {
  cuda::DecodeLayersArgs args{};
  args.shape = shape_;
  args.layers = table_.as<cuda::DecodeLayerWeights>();
  args.embedding = embedding_;
  args.tokens = reinterpret_cast<const int32_t*>(upload + layout.tokens);
  args.last_tokens = last_tokens;
  args.residual = residual;
  args.rope = rope;
  args.kv_layer_stride = kv_layer_stride;
  args.work = {reinterpret_cast<const cuda::AttentionItem*>(upload + layout.split_items),
               reinterpret_cast<const int32_t*>(upload + layout.num_split_items)};
  args.norm_eps = norm_eps_;
  args.workspace = workspace_.as<void>();
  args.saturations = rope.saturations;
  return cuda::LaunchDecodeLayers(Plan(layout.num_rows), args, stream);
}

std::string DecodeLayers::ToString() const {
  if (workspace_.bytes() > 0) return Plan(1).ToString();
  return absl::StrCat(cuda::DecodeLayersPlan{}.ToString(), refusal_);
}

}  // namespace ridge::worker
