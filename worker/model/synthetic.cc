#include "worker/model/synthetic.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/hash.h"
#include "kernels/half.h"
#include "kernels/rope_table.h"
#include "worker/model/families/llama.h"
#include "worker/model/families/qwen2.h"
#include "worker/model/families/qwen3.h"

namespace ridge::worker {
namespace {

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr int32_t kHalfRange = 1 << 23;

bool IsNorm(TensorRole role) {
  return role == TensorRole::kAttentionNorm || role == TensorRole::kMlpNorm ||
         role == TensorRole::kFinalNorm || role == TensorRole::kQueryNorm || role == TensorRole::kKeyNorm;
}

// Queries and keys that are normed are as large as those that are not.
float NormMean(TensorRole role) {
  return role == TensorRole::kQueryNorm || role == TensorRole::kKeyNorm ? 1.5f : 1.0f;
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
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      break;
  }
  RIDGE_CHECK(false);
  return 0;
}

ModelConfig Shape(const char* name, const ModelFamily& family, int32_t layers, int32_t hidden, int32_t heads,
                  int32_t kv_heads, int32_t head_dim, int32_t mlp, int32_t vocab, int32_t context) {
  ModelConfig config;
  config.name = name;
  config.architecture = family.name;
  config.num_layers = layers;
  config.hidden_size = hidden;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.mlp_size = mlp;
  config.vocab_size = vocab;
  config.context_length = context;
  config.qkv_bias = family.qkv_bias;
  config.qk_norm = family.qk_norm;
  config.tied_embedding = true;
  config.norm_eps = &family == &kLlama ? 1e-5f : 1e-6f;
  config.rope_theta = 1e6f;
  return config;
}

std::vector<ModelConfig> Shapes() {
  //                                                   layers hidden heads kv dim    mlp   vocab context
  std::vector<ModelConfig> shapes = {
      Shape("synthetic:smollm2-135m", kLlama, 30, 576, 9, 3, 64, 1536, 49152, 8192),
      Shape("synthetic:llama-3.2-1b", kLlama, 16, 2048, 32, 8, 64, 8192, 128256, 131072),
      Shape("synthetic:qwen2.5-0.5b", kQwen2, 24, 896, 14, 2, 64, 4864, 151936, 32768),
      Shape("synthetic:qwen2.5-1.5b", kQwen2, 28, 1536, 12, 2, 128, 8960, 151936, 32768),
      Shape("synthetic:qwen2.5-3b", kQwen2, 36, 2048, 16, 2, 128, 11008, 151936, 32768),
      Shape("synthetic:qwen2.5-7b", kQwen2, 28, 3584, 28, 4, 128, 18944, 152064, 32768),
      Shape("synthetic:qwen3-0.6b", kQwen3, 28, 1024, 16, 8, 128, 3072, 151936, 40960),
  };
  for (ModelConfig& shape : shapes) {
    if (shape.name == "synthetic:smollm2-135m") shape.rope_theta = 1e5f;
    if (shape.name == "synthetic:qwen2.5-7b") shape.tied_embedding = false;
    if (shape.name != "synthetic:llama-3.2-1b") continue;
    shape.rope_theta = 5e5f;
    shape.rope_divisors = kernels::Llama3RopeDivisors(
        shape.rope_theta, shape.head_dim,
        {.factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192});
  }
  return shapes;
}

}  // namespace

SyntheticSource::SyntheticSource(ModelConfig config, uint64_t seed)
    : config_(std::move(config)), seed_(seed) {}

std::optional<GeneratedTensor> SyntheticSource::Generated(TensorId id) const {
  const uint64_t key = Mix(seed_ + (static_cast<uint64_t>(id.role) << 32) + static_cast<uint64_t>(id.layer));
  if (IsNorm(id.role)) return GeneratedTensor{key, NormMean(id.role) / kHalfRange, kHalfRange, 3};
  // A uniform number in [-a, a) has the standard deviation a / sqrt(3).
  const double scale = Deviation(config_, id.role) * std::sqrt(3.0) / kHalfRange;
  return GeneratedTensor{key, static_cast<float>(scale), 0, 0};
}

absl::Status SyntheticSource::ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                                       absl::Span<Half> out) const {
  const TensorShape shape = ShapeOf(config_, id);
  RIDGE_CHECK(row_begin >= 0 && row_count >= 0 && row_begin + row_count <= shape.rows);
  RIDGE_CHECK(static_cast<int64_t>(out.size()) == row_count * shape.cols);
  const GeneratedTensor tensor = *Generated(id);
  uint64_t counter = tensor.key + static_cast<uint64_t>(row_begin * shape.cols) * 0x9E3779B97F4A7C15u;
  for (Half& element : out) {
    const int32_t integer = static_cast<int32_t>(Mix(counter) >> 40) - kHalfRange;
    element = kernels::FloatToHalf(static_cast<float>(tensor.offset + (integer >> tensor.shift)) * tensor.scale);
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
  std::vector<std::string> names;
  for (const ModelConfig& shape : Shapes()) {
    if (shape.name == absl::StrCat("synthetic:", name)) return std::make_unique<SyntheticSource>(shape);
    names.push_back(shape.name.substr(sizeof("synthetic:") - 1));
  }
  return absl::NotFoundError(
      absl::StrCat("synthetic:", name, ": unknown; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace ridge::worker
