#include "worker/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/model/family.h"

namespace ridge::worker {
namespace {

// Reads the keys of one architecture ("llama.block_count") into fields; the first error stays.
class KeyReader {
 public:
  KeyReader(const GgufFile& file, absl::string_view architecture)
      : file_(file), prefix_(absl::StrCat(architecture, ".")) {}

  const absl::Status& status() const { return status_; }
  std::string Key(absl::string_view name) const { return absl::StrCat(prefix_, name); }
  bool Has(absl::string_view name) const { return file_.Has(Key(name)); }

  int32_t Int(absl::string_view name) {
    const std::string key = Key(name);
    absl::StatusOr<int64_t> value = file_.GetInt(key);
    if (!value.ok()) {
      status_.Update(value.status());
      return 0;
    }
    if (*value < 0 || *value > INT32_MAX) {
      status_.Update(absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": metadata ", key, ": ", *value, " is too large")));
      return 0;
    }
    return static_cast<int32_t>(*value);
  }
  int32_t IntOr(absl::string_view name, int32_t fallback) { return Has(name) ? Int(name) : fallback; }

  float Float(absl::string_view name) {
    absl::StatusOr<double> value = file_.GetFloat(Key(name));
    status_.Update(value.status());
    return value.ok() ? static_cast<float>(*value) : 0.0f;
  }
  float FloatOr(absl::string_view name, float fallback) { return Has(name) ? Float(name) : fallback; }

  void FailUnsupported(absl::string_view name, absl::string_view what) {
    status_.Update(
        absl::UnimplementedError(absl::StrCat(file_.path(), ": metadata ", Key(name), ": ", what)));
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
  absl::Status status_;
};

absl::StatusOr<const ModelFamily*> ReadFamily(const GgufFile& file) {
  absl::StatusOr<absl::string_view> name = file.GetString("general.architecture");
  if (!name.ok()) return name.status();
  if (const ModelFamily* family = FindFamily(*name); family != nullptr) return family;
  return absl::UnimplementedError(
      absl::StrFormat("%s: metadata general.architecture: \"%s\" is not supported, only %s", file.path(),
                      absl::CHexEscape(name->substr(0, 40)), FamilyNames()));
}

// A file made without a name carries its own.
std::string NameOf(const GgufFile& file) {
  if (file.Has("general.name")) {
    absl::StatusOr<absl::string_view> name = file.GetString("general.name");
    if (name.ok() && !name->empty()) return std::string(*name);
  }
  const std::string& path = file.path();
  std::string base = path.substr(path.rfind('/') + 1);
  return base.substr(0, base.rfind(".gguf"));
}

// Scaled positions: a factor for all frequencies in the metadata, or one for each in a tensor.
absl::Status ReadRopeScaling(const GgufFile& file, const TensorMap& tensors, KeyReader& keys,
                             ModelConfig& config) {
  const std::string type_key = keys.Key("rope.scaling.type");
  absl::string_view type = "linear";  // where a file gives a factor alone
  if (file.Has(type_key)) {
    absl::StatusOr<absl::string_view> given = file.GetString(type_key);
    if (!given.ok()) return given.status();
    type = *given;
  }
  if (type != "none" && type != "linear") {
    return absl::UnimplementedError(
        absl::StrFormat("%s: metadata %s: \"%s\" is not supported, only none and linear", file.path(),
                        type_key, absl::CHexEscape(type.substr(0, 40))));
  }
  const size_t half = static_cast<size_t>(config.head_dim / 2);
  const float factor = keys.FloatOr("rope.scaling.factor", keys.FloatOr("rope.scale_linear", 1.0f));
  if (!keys.status().ok()) return keys.status();
  if (type == "linear" && factor != 1.0f && factor != 0.0f) config.rope_divisors.assign(half, factor);

  const StoredTensor* factors = FindTensor(tensors, kRopeFactorsTensor);
  if (factors == nullptr) return absl::OkStatus();
  if (factors->type != &kF32 || factors->rows != 1 || factors->cols != static_cast<int64_t>(half)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s: not %d numbers of type F32", file.path(), kRopeFactorsTensor, half));
  }
  std::vector<float> values(half);
  factors->type->dequantize(factors->data.data(), factors->cols, values.data());
  config.rope_divisors.resize(half, 1.0);
  for (size_t i = 0; i < half; ++i) {
    if (!std::isfinite(values[i]) || values[i] <= 0.0f) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: number %d, %g, is not positive",
                                                        file.path(), kRopeFactorsTensor, i, values[i]));
    }
    config.rope_divisors[i] *= values[i];
  }
  return absl::OkStatus();
}

std::string KeyOf(const KeyReader& keys, absl::string_view field) {
  constexpr std::pair<absl::string_view, absl::string_view> kKeys[] = {
      {"num_layers", "block_count"},         {"hidden_size", "embedding_length"},
      {"num_heads", "attention.head_count"}, {"num_kv_heads", "attention.head_count_kv"},
      {"head_dim", "attention.key_length"},  {"mlp_size", "feed_forward_length"},
      {"context_length", "context_length"},  {"norm_eps", "attention.layer_norm_rms_epsilon"},
      {"rope_theta", "rope.freq_base"},      {"rope_divisors", "rope.scaling.factor"},
  };
  for (const auto& [ours, theirs] : kKeys) {
    if (field == ours) return absl::StrCat("metadata ", keys.Key(theirs));
  }
  if (field == "vocab_size") return "tensor token_embd.weight";
  return absl::StrCat("metadata tokenizer.ggml.", field);
}

// Keys of relatives of the families, whose computation differs.
void RefuseWhatIsNotBuilt(KeyReader& keys, const ModelConfig& config) {
  if (keys.IntOr("expert_count", 0) != 0) keys.FailUnsupported("expert_count", "experts are not supported");
  if (keys.IntOr("attention.value_length", config.head_dim) != config.head_dim) {
    keys.FailUnsupported("attention.value_length", "values of another length than keys are not supported");
  }
  if (keys.IntOr("rope.dimension_count", config.head_dim) != config.head_dim) {
    keys.FailUnsupported("rope.dimension_count", "rotary positions of a part of a head are not supported");
  }
  const int32_t window = keys.IntOr("attention.sliding_window", 0);
  if (window != 0 && window < config.context_length) {
    keys.FailUnsupported("attention.sliding_window", "not supported for contexts longer than the window");
  }
}

// Token ids that end a sequence, in the order of the file, each once.
absl::Status ReadSpecialTokens(const GgufFile& file, ModelConfig& config) {
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (!file.Has(key)) continue;
    absl::StatusOr<int64_t> id = file.GetInt(key);
    if (!id.ok()) return id.status();
    if (*id < 0 || *id >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": metadata ", key, ": ", *id, " is outside the vocabulary"));
    }
    const int32_t token = static_cast<int32_t>(*id);
    if (std::find(config.eos_token_ids.begin(), config.eos_token_ids.end(), token) ==
        config.eos_token_ids.end()) {
      config.eos_token_ids.push_back(token);
    }
  }
  if (file.Has("tokenizer.ggml.bos_token_id")) {
    absl::StatusOr<int64_t> id = file.GetInt("tokenizer.ggml.bos_token_id");
    if (!id.ok()) return id.status();
    config.bos_token_id = *id < 0 || *id >= config.vocab_size ? -1 : static_cast<int32_t>(*id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file, const TensorMap& tensors) {
  absl::StatusOr<const ModelFamily*> family = ReadFamily(file);
  if (!family.ok()) return family.status();
  const StoredTensor* embedding = FindTensor(tensors, "token_embd.weight");
  if (embedding == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor token_embd.weight: missing"));
  if (embedding->rows > INT32_MAX)
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor token_embd.weight: too large"));

  KeyReader keys(file, (*family)->name);
  ModelConfig config;
  config.name = NameOf(file);
  config.architecture = (*family)->name;
  config.num_layers = keys.Int("block_count");
  config.hidden_size = keys.Int("embedding_length");
  config.num_heads = keys.Int("attention.head_count");
  config.num_kv_heads = keys.IntOr("attention.head_count_kv", config.num_heads);
  config.head_dim = keys.IntOr("attention.key_length", config.hidden_size / std::max(config.num_heads, 1));
  config.mlp_size = keys.Int("feed_forward_length");
  config.vocab_size = static_cast<int32_t>(embedding->rows);
  config.context_length = keys.Int("context_length");
  config.norm_eps = keys.Float("attention.layer_norm_rms_epsilon");
  config.rope_theta = keys.FloatOr("rope.freq_base", 10000.0f);
  config.qkv_bias = FindTensor(tensors, "blk.0.attn_q.bias") != nullptr;
  config.qk_norm = (*family)->qk_norm;
  config.tied_embedding = FindTensor(tensors, "output.weight") == nullptr;
  RefuseWhatIsNotBuilt(keys, config);
  if (!keys.status().ok()) return keys.status();
  if (absl::Status status = ReadSpecialTokens(file, config); !status.ok()) return status;
  const auto key_of = [&](absl::string_view field) { return KeyOf(keys, field); };
  // The frequencies' number is bounded first.
  if (absl::Status status = ValidateConfig(config, file.path(), key_of); !status.ok()) return status;
  if (absl::Status status = ReadRopeScaling(file, tensors, keys, config); !status.ok()) return status;
  if (absl::Status status = ValidateConfig(config, file.path(), key_of); !status.ok()) return status;
  return config;
}

}  // namespace ridge::worker
