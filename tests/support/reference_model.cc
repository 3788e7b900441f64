#include "tests/support/reference_model.h"

#include "common/check.h"
#include "kernels/half.h"

namespace ridge::worker {

namespace reference = kernels::reference;

namespace {

std::vector<float> ReadTensor(const WeightSource& source, TensorRole role, int32_t layer = 0) {
  const TensorShape shape = ShapeOf(source.config(), {role, layer});
  std::vector<Half> bits(static_cast<size_t>(shape.size()));
  RIDGE_CHECK(source.ReadRows({role, layer}, 0, shape.rows, absl::MakeSpan(bits)).ok());
  std::vector<float> values;
  values.reserve(bits.size());
  for (Half half : bits) values.push_back(kernels::HalfToFloat(half));
  return values;
}

}  // namespace

ReferenceModel::ReferenceModel(const WeightSource& source, reference::Mode mode)
    : mode_(mode),
      config_(source.config()),
      rope_(kernels::MakeRopeTable(config_.rope_theta, config_.head_dim, config_.rope_divisors,
                                   config_.context_length)),
      embedding_(ReadTensor(source, TensorRole::kTokenEmbedding)),
      final_norm_(ReadTensor(source, TensorRole::kFinalNorm)) {
  if (!config_.tied_embedding) output_ = ReadTensor(source, TensorRole::kOutput);
  for (int32_t l = 0; l < config_.num_layers; ++l) {
    Layer& layer = layers_.emplace_back();
    layer.attention_norm = ReadTensor(source, TensorRole::kAttentionNorm, l);
    layer.query = ReadTensor(source, TensorRole::kQuery, l);
    layer.key = ReadTensor(source, TensorRole::kKey, l);
    layer.value = ReadTensor(source, TensorRole::kValue, l);
    layer.attention_output = ReadTensor(source, TensorRole::kAttentionOutput, l);
    if (config_.qkv_bias) {
      layer.query_bias = ReadTensor(source, TensorRole::kQueryBias, l);
      layer.key_bias = ReadTensor(source, TensorRole::kKeyBias, l);
      layer.value_bias = ReadTensor(source, TensorRole::kValueBias, l);
    }
    if (config_.qk_norm) {
      layer.query_norm = ReadTensor(source, TensorRole::kQueryNorm, l);
      layer.key_norm = ReadTensor(source, TensorRole::kKeyNorm, l);
    }
    layer.mlp_norm = ReadTensor(source, TensorRole::kMlpNorm, l);
    layer.gate = ReadTensor(source, TensorRole::kGate, l);
    layer.up = ReadTensor(source, TensorRole::kUp, l);
    layer.down = ReadTensor(source, TensorRole::kDown, l);
  }
}

ReferenceSequence::ReferenceSequence(const ReferenceModel* model)
    : model_(*model),
      caches_(static_cast<size_t>(model->config_.num_layers) *
              static_cast<size_t>(model->config_.num_kv_heads)) {}

std::vector<float> ReferenceSequence::Append(absl::Span<const int32_t> tokens, int64_t num_outputs) {
  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    AppendToken(tokens[i]);
    if (static_cast<int64_t>(tokens.size() - i) > num_outputs) continue;
    const std::vector<float> row = Multiply(model_.output(), {}, Norm(model_.final_norm_));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

void ReferenceSequence::AppendToken(int32_t token) {
  const int64_t hidden = model_.config_.hidden_size;
  const auto row = model_.embedding_.begin() + token * hidden;
  residual_.assign(row, row + hidden);
  for (int64_t layer = 0; layer < model_.config_.num_layers; ++layer) {
    Attention(layer);
    Mlp(layer);
  }
  ++position_;
}

void ReferenceSequence::Attention(int64_t layer) {
  const ModelConfig& config = model_.config_;
  const reference::Mode mode = model_.mode_;
  const ReferenceModel::Layer& weights = model_.layers_[static_cast<size_t>(layer)];
  const int64_t d = config.head_dim;
  const float* cosines = model_.rope_.cosines.data() + position_ * (d / 2);
  const float* sines = model_.rope_.sines.data() + position_ * (d / 2);

  const std::vector<float> x = Norm(weights.attention_norm);
  std::vector<float> query = Multiply(weights.query, weights.query_bias, x);
  std::vector<float> key = Multiply(weights.key, weights.key_bias, x);
  std::vector<float> value = Multiply(weights.value, weights.value_bias, x);
  for (int64_t head = 0; head < config.num_heads; ++head) {
    if (config.qk_norm) {
      reference::NormHead(mode, weights.query_norm.data(), config.norm_eps, d, query.data() + head * d);
    }
    reference::RotateHead(mode, cosines, sines, d, query.data() + head * d);
  }
  reference::RoundRow(mode, config.kv_size(), value.data());
  Cache* caches = caches_.data() + layer * config.num_kv_heads;
  for (int64_t head = 0; head < config.num_kv_heads; ++head) {
    if (config.qk_norm) {
      reference::NormHead(mode, weights.key_norm.data(), config.norm_eps, d, key.data() + head * d);
    }
    reference::RotateHead(mode, cosines, sines, d, key.data() + head * d);
    Cache& cache = caches[head];
    cache.keys.insert(cache.keys.end(), key.begin() + head * d, key.begin() + (head + 1) * d);
    cache.values.insert(cache.values.end(), value.begin() + head * d, value.begin() + (head + 1) * d);
  }

  std::vector<float> attended(query.size());
  const int64_t group = config.num_heads / config.num_kv_heads;
  for (int64_t head = 0; head < config.num_heads; ++head) {
    const Cache& cache = caches[head / group];
    reference::Attention(mode, query.data() + head * d, cache.keys.data(), cache.values.data(), position_ + 1,
                         d, attended.data() + head * d);
  }
  const std::vector<float> output = Multiply(weights.attention_output, {}, attended);
  for (size_t i = 0; i < residual_.size(); ++i) residual_[i] += output[i];
}

void ReferenceSequence::Mlp(int64_t layer) {
  const ReferenceModel::Layer& weights = model_.layers_[static_cast<size_t>(layer)];
  const std::vector<float> x = Norm(weights.mlp_norm);
  const std::vector<float> gate = Multiply(weights.gate, {}, x);
  const std::vector<float> up = Multiply(weights.up, {}, x);
  std::vector<float> activated(gate.size());
  reference::SwiGlu(model_.mode_, gate.data(), up.data(), static_cast<int64_t>(gate.size()),
                    activated.data());
  const std::vector<float> output = Multiply(weights.down, {}, activated);
  for (size_t i = 0; i < residual_.size(); ++i) residual_[i] += output[i];
}

std::vector<float> ReferenceSequence::Multiply(const std::vector<float>& weights,
                                               const std::vector<float>& bias,
                                               const std::vector<float>& x) const {
  std::vector<float> y(weights.size() / x.size());
  reference::Matmul(model_.mode_, x.data(), weights.data(), bias.empty() ? nullptr : bias.data(), 1,
                    static_cast<int64_t>(y.size()), static_cast<int64_t>(x.size()), y.data());
  return y;
}

std::vector<float> ReferenceSequence::Norm(const std::vector<float>& weights) const {
  std::vector<float> out(residual_.size());
  reference::RmsNorm(model_.mode_, residual_.data(), weights.data(), model_.config_.norm_eps,
                     static_cast<int64_t>(out.size()), out.data());
  return out;
}

}  // namespace ridge::worker
