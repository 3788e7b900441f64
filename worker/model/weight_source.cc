#include "worker/model/weight_source.h"

#include "common/check.h"

namespace ridge::worker {
namespace {

constexpr TensorRole kLayerRoles[] = {
    TensorRole::kAttentionNorm,
    TensorRole::kQuery,
    TensorRole::kKey,
    TensorRole::kValue,
    TensorRole::kQueryBias,
    TensorRole::kKeyBias,
    TensorRole::kValueBias,
    TensorRole::kAttentionOutput,
    TensorRole::kQueryNorm,
    TensorRole::kKeyNorm,
    TensorRole::kMlpNorm,
    TensorRole::kGate,
    TensorRole::kUp,
    TensorRole::kDown,
};

bool IsStored(const ModelConfig& config, TensorRole role) {
  switch (role) {
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return config.qkv_bias;
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return config.qk_norm;
    default:
      return true;
  }
}

}  // namespace

TensorShape ShapeOf(const ModelConfig& config, TensorId id) {
  const int64_t hidden = config.hidden_size;
  switch (id.role) {
    case TensorRole::kTokenEmbedding:
    case TensorRole::kOutput:
      return {config.vocab_size, hidden};
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kFinalNorm:
      return {1, hidden};
    case TensorRole::kQuery:
      return {config.q_size(), hidden};
    case TensorRole::kKey:
    case TensorRole::kValue:
      return {config.kv_size(), hidden};
    case TensorRole::kQueryBias:
      return {1, config.q_size()};
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return {1, config.kv_size()};
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return {1, config.head_dim};
    case TensorRole::kAttentionOutput:
      return {hidden, config.q_size()};
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {config.mlp_size, hidden};
    case TensorRole::kDown:
      return {hidden, config.mlp_size};
  }
  RIDGE_CHECK(false);
  return {0, 0};
}

std::vector<TensorId> TensorsOf(const ModelConfig& config) {
  std::vector<TensorId> tensors = {{TensorRole::kTokenEmbedding}};
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (TensorRole role : kLayerRoles) {
      if (IsStored(config, role)) tensors.push_back({role, layer});
    }
  }
  tensors.push_back({TensorRole::kFinalNorm});
  if (!config.tied_embedding) tensors.push_back({TensorRole::kOutput});
  return tensors;
}

bool IsLayerTensor(TensorRole role) {
  return role != TensorRole::kTokenEmbedding && role != TensorRole::kFinalNorm && role != TensorRole::kOutput;
}

}  // namespace ridge::worker
