#include "worker/model/synthetic.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/hash.h"
#include "kernels/half.h"

namespace ridge::worker {
namespace {

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr int32_t kHalfRange = 1 << 23;

bool IsNorm(TensorRole role) {
  return role == TensorRole::kAttentionNorm || role == TensorRole::kMlpNorm || role == TensorRole::kFinalNorm;
}

// Standard deviation of a matrix' elements. Inputs of a matrix have a root mean square near 1, so that "gain
// / sqrt(K)" gives outputs near the gain. Queries and keys are larger: attention then picks tokens instead of
// averaging all.
double Deviation(const ModelConfig& config, TensorRole role) {
  const auto gain = [](double value, int64_t fan_in) {
    return value / std::sqrt(static_cast<double>(fan_in));
  };
  switch (role) {
    case TensorRole::kTokenEmbedding:
    case TensorRole::kOutput:
      return gain(2.0, config.hidden_size);
    case TensorRole::kQuery:
    case TensorRole::kKey:
      return gain(1.5, config.hidden_size);
    case TensorRole::kValue:
    case TensorRole::kGate:
    case TensorRole::kUp:
      return gain(1.0, config.hidden_size);
    case TensorRole::kAttentionOutput:
      return gain(1.0, config.q_size());
    case TensorRole::kDown:
      return gain(2.0, config.mlp_size);
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return 0.1;
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kFinalNorm:
      break;
  }
  RIDGE_CHECK(false);
  return 0;
}

ModelConfig SmolLm2_135m() {
  ModelConfig config;
  config.name = "synthetic:smollm2-135m";
  config.num_layers = 30;
  config.hidden_size = 576;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.mlp_size = 1536;
  config.vocab_size = 49152;
  config.context_length = 8192;
  config.norm_eps = 1e-5f;
  config.rope_theta = 100000.0f;
  config.tied_embedding = true;
  return config;
}

ModelConfig Qwen2_5(const char* name, int32_t layers, int32_t hidden, int32_t heads, int32_t head_dim,
                    int32_t mlp) {
  ModelConfig config;
  config.name = name;
  config.architecture = Architecture::kQwen2;
  config.num_layers = layers;
  config.hidden_size = hidden;
  config.num_heads = heads;
  config.num_kv_heads = 2;
  config.head_dim = head_dim;
  config.mlp_size = mlp;
  config.vocab_size = 151936;
  config.context_length = 32768;
  config.norm_eps = 1e-6f;
  config.rope_theta = 1000000.0f;
  config.qkv_bias = true;
  config.tied_embedding = true;
  return config;
}

}  // namespace

SyntheticSource::SyntheticSource(ModelConfig config, uint64_t seed)
    : config_(std::move(config)), seed_(seed) {}

absl::Status SyntheticSource::ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                                       absl::Span<Half> out) const {
  const TensorShape shape = ShapeOf(config_, id);
  RIDGE_CHECK(row_begin >= 0 && row_count >= 0 && row_begin + row_count <= shape.rows);
  RIDGE_CHECK(static_cast<int64_t>(out.size()) == row_count * shape.cols);
  const bool norm = IsNorm(id.role);
  // A uniform number in [-a, a) has the standard deviation a / sqrt(3).
  const float scale = norm ? 1.0f / kHalfRange
                           : static_cast<float>(Deviation(config_, id.role) * std::sqrt(3.0) / kHalfRange);
  const int32_t offset = norm ? kHalfRange : 0;
  const int shift = norm ? 3 : 0;
  const uint64_t key = Mix(seed_ + (static_cast<uint64_t>(id.role) << 32) + static_cast<uint64_t>(id.layer));
  uint64_t counter = key + static_cast<uint64_t>(row_begin * shape.cols) * 0x9E3779B97F4A7C15u;
  for (Half& element : out) {
    const int32_t integer = static_cast<int32_t>(Mix(counter) >> 40) - kHalfRange;
    element = kernels::FloatToHalf(static_cast<float>(offset + (integer >> shift)) * scale);
    counter += 0x9E3779B97F4A7C15u;
  }
  return absl::OkStatus();
}

std::string SyntheticSource::Fingerprint() const {
  Sha256 hash;
  hash.Update(absl::StrCat("synthetic 1 ", seed_, " ", CanonicalText(config_)));
  return hash.HexDigest();
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenSynthetic(absl::string_view name) {
  for (const ModelConfig& config : {SmolLm2_135m(), Qwen2_5("synthetic:qwen2.5-0.5b", 24, 896, 14, 64, 4864),
                                    Qwen2_5("synthetic:qwen2.5-1.5b", 28, 1536, 12, 128, 8960)}) {
    if (config.name == absl::StrCat("synthetic:", name)) return std::make_unique<SyntheticSource>(config);
  }
  return absl::NotFoundError(
      absl::StrCat("synthetic:", name, ": unknown; there are smollm2-135m, qwen2.5-0.5b and qwen2.5-1.5b"));
}

}  // namespace ridge::worker
