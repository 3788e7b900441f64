#include "worker/model/model_config.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {
namespace {

// Far above published models, low enough that products of two fields fit 32 bits and of three 64.
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxHidden = 1 << 16;
constexpr int32_t kMaxHeads = 512;
constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxMlp = 1 << 18;
constexpr int32_t kMaxVocab = 1 << 21;
constexpr int32_t kMaxContext = 1 << 24;

}  // namespace

int64_t ModelConfig::num_parameters() const {
  int64_t total = 0;
  for (TensorId id : TensorsOf(*this)) total += ShapeOf(*this, id).size();
  return total;
}

absl::Status ValidateConfig(const ModelConfig& config, const std::string& origin, FieldKey key) {
  const auto error = [&](const char* field, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", key(field), ": ", what));
  };
  const struct {
    const char* field;
    int32_t value;
    int32_t max;
  } ranges[] = {
      {"num_layers", config.num_layers, kMaxLayers}, {"hidden_size", config.hidden_size, kMaxHidden},
      {"num_heads", config.num_heads, kMaxHeads},    {"num_kv_heads", config.num_kv_heads, kMaxHeads},
      {"head_dim", config.head_dim, kMaxHeadDim},    {"mlp_size", config.mlp_size, kMaxMlp},
      {"vocab_size", config.vocab_size, kMaxVocab},  {"context_length", config.context_length, kMaxContext},
  };
  for (const auto& range : ranges) {
    if (range.value < 1 || range.value > range.max) {
      return error(range.field, absl::StrFormat("%d is not in [1, %d]", range.value, range.max));
    }
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return error("num_kv_heads",
                 absl::StrFormat("%d does not divide the %d heads", config.num_kv_heads, config.num_heads));
  }
  if (config.head_dim % 2 != 0) return error("head_dim", absl::StrFormat("%d is odd", config.head_dim));
  if (!std::isfinite(config.norm_eps) || config.norm_eps <= 0.0f || config.norm_eps > 0.1f) {
    return error("norm_eps", absl::StrFormat("%g is not in (0, 0.1]", config.norm_eps));
  }
  if (!std::isfinite(config.rope_theta) || config.rope_theta < 1.0f) {
    return error("rope_theta", absl::StrFormat("%g is not at least 1", config.rope_theta));
  }
  if (!config.rope_divisors.empty() &&
      config.rope_divisors.size() != static_cast<size_t>(config.head_dim / 2)) {
    return error("rope_divisors", absl::StrFormat("%d numbers for a head_dim of %d",
                                                  config.rope_divisors.size(), config.head_dim));
  }
  for (double divisor : config.rope_divisors) {
    if (!std::isfinite(divisor) || divisor <= 0.0) {
      return error("rope_divisors", absl::StrFormat("%g is not a positive number", divisor));
    }
  }
  for (int32_t id : config.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size)
      return error("eos_token_ids", absl::StrFormat("%d is outside the vocabulary", id));
  }
  if (config.bos_token_id < -1 || config.bos_token_id >= config.vocab_size) {
    return error("bos_token_id", absl::StrFormat("%d is outside the vocabulary", config.bos_token_id));
  }
  return absl::OkStatus();
}

std::string CanonicalText(const ModelConfig& c) {
  const auto exact = [](std::string* out, double value) { absl::StrAppendFormat(out, "%a", value); };
  return absl::StrFormat(
      "%s layers=%d hidden=%d heads=%d kv_heads=%d head_dim=%d mlp=%d vocab=%d context=%d eps=%a theta=%a "
      "divisors=%s bias=%d qk_norm=%d tied=%d eos=%s bos=%d",
      c.architecture, c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.mlp_size,
      c.vocab_size, c.context_length, c.norm_eps, c.rope_theta, absl::StrJoin(c.rope_divisors, ",", exact),
      c.qkv_bias, c.qk_norm, c.tied_embedding, absl::StrJoin(c.eos_token_ids, ","), c.bos_token_id);
}

}  // namespace ridge::worker
