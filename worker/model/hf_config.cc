#include "worker/model/hf_config.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace ridge::worker {
namespace {

using nlohmann::json;

absl::StatusOr<json> ParseObject(absl::string_view text, const std::string& path) {
  // Published files have a few KiB; the bound keeps the parsed form of a hostile one small.
  constexpr size_t kMaxBytes = 1 << 20;
  if (text.size() > kMaxBytes) return absl::InvalidArgumentError(absl::StrCat(path, ": larger than 1 MiB"));
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return value;
}

// Reads keys into fields; the first error stays. A key that is null counts as missing.
class KeyReader {
 public:
  KeyReader(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }

  const json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  int32_t Int(const char* key) {
    if (Find(key) == nullptr) Fail(key, "missing");
    return IntOr(key, 0);
  }
  int32_t IntOr(const char* key, int32_t fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer() || *value < 0 || *value > INT32_MAX) {
      Fail(key, "not an integer in [0, 2^31)");
      return fallback;
    }
    return value->get<int32_t>();
  }

  float FloatOr(const char* key, float fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) {
      Fail(key, "not a number");
      return fallback;
    }
    return static_cast<float>(value->get<double>());
  }

  bool BoolOr(const char* key, bool fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Fail(key, "not true or false");
      return fallback;
    }
    return value->get<bool>();
  }

  // Token ids: a number or a list of numbers.
  std::vector<int32_t> Ids(const char* key) {
    const json* value = Find(key);
    if (value == nullptr) return {};
    std::vector<int32_t> ids;
    for (const json& id : value->is_array() ? *value : json::array({*value})) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
        Fail(key, "not a token id or a list of them");
        return {};
      }
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

  void Fail(const char* key, absl::string_view what) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, ": ", what)));
  }
  void FailUnsupported(const char* key, absl::string_view what) {
    status_.Update(absl::UnimplementedError(absl::StrCat(path_, ": ", key, ": ", what)));
  }

 private:
  const json& object_;
  const std::string path_;
  absl::Status status_;
};

absl::StatusOr<Architecture> ReadArchitecture(KeyReader& keys) {
  const json* names = keys.Find("architectures");
  if (names == nullptr || !names->is_array() || names->size() != 1 || !names->front().is_string()) {
    keys.Fail("architectures", "a list of one name is needed");
    return keys.status();
  }
  const std::string name = names->front().get<std::string>();
  if (name == "LlamaForCausalLM") return Architecture::kLlama;
  if (name == "Qwen2ForCausalLM") return Architecture::kQwen2;
  keys.FailUnsupported("architectures",
                       absl::StrCat(absl::CHexEscape(name.substr(0, 60)),
                                    " is not supported, only LlamaForCausalLM and Qwen2ForCausalLM"));
  return keys.status();
}

// The base of the rotary frequencies; any way of scaling positions is an error.
float ReadRopeTheta(KeyReader& keys, const std::string& path) {
  constexpr float kDefault = 10000.0f;
  float theta = keys.FloatOr("rope_theta", kDefault);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* nested = keys.Find(key);
    if (nested == nullptr) continue;
    if (!nested->is_object()) {
      keys.Fail(key, "not an object");
      return theta;
    }
    KeyReader rope(*nested, absl::StrCat(path, ": ", key));
    for (const char* type_key : {"rope_type", "type"}) {
      const json* type = rope.Find(type_key);
      if (type != nullptr && *type != "default")
        keys.FailUnsupported(key, "scaled positions are not supported");
    }
    theta = rope.FloatOr("rope_theta", theta);
    if (!rope.status().ok()) keys.Fail(key, "rope_theta: not a number");
  }
  return theta;
}

void RefuseWhatIsNotBuilt(KeyReader& keys, Architecture architecture) {
  const json* activation = keys.Find("hidden_act");
  if (activation != nullptr && *activation != "silu")
    keys.FailUnsupported("hidden_act", "only silu is supported");
  if (keys.BoolOr("mlp_bias", false)) keys.FailUnsupported("mlp_bias", "not supported");
  if (architecture == Architecture::kLlama && keys.BoolOr("attention_bias", false)) {
    keys.FailUnsupported("attention_bias", "not supported for llama");
  }
  if (keys.BoolOr("use_sliding_window", false)) keys.FailUnsupported("use_sliding_window", "not supported");
  if (keys.Find("quantization_config") != nullptr)
    keys.FailUnsupported("quantization_config", "not supported");
}

void AddIds(const std::vector<int32_t>& more, std::vector<int32_t>& ids) {
  for (int32_t id : more) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromHfJson(absl::string_view text, const std::string& path) {
  absl::StatusOr<json> object = ParseObject(text, path);
  if (!object.ok()) return object.status();
  KeyReader keys(*object, path);
  absl::StatusOr<Architecture> architecture = ReadArchitecture(keys);
  if (!architecture.ok()) return architecture.status();

  ModelConfig config;
  config.architecture = *architecture;
  config.num_layers = keys.Int("num_hidden_layers");
  config.hidden_size = keys.Int("hidden_size");
  config.num_heads = keys.Int("num_attention_heads");
  config.num_kv_heads = keys.IntOr("num_key_value_heads", config.num_heads);
  config.head_dim = keys.IntOr("head_dim", config.hidden_size / std::max(config.num_heads, 1));
  config.mlp_size = keys.Int("intermediate_size");
  config.vocab_size = keys.Int("vocab_size");
  config.context_length = keys.Int("max_position_embeddings");
  config.norm_eps = keys.FloatOr("rms_norm_eps", 1e-6f);
  config.rope_theta = ReadRopeTheta(keys, path);
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  config.tied_embedding = keys.BoolOr("tie_word_embeddings", false);
  AddIds(keys.Ids("eos_token_id"), config.eos_token_ids);
  config.bos_token_id = keys.IntOr("bos_token_id", -1);
  RefuseWhatIsNotBuilt(keys, config.architecture);
  if (!keys.status().ok()) return keys.status();
  if (absl::Status status = ValidateConfig(config, path); !status.ok()) return status;
  return config;
}

absl::Status AddGenerationConfig(absl::string_view text, const std::string& path, ModelConfig& config) {
  absl::StatusOr<json> object = ParseObject(text, path);
  if (!object.ok()) return object.status();
  KeyReader keys(*object, path);
  AddIds(keys.Ids("eos_token_id"), config.eos_token_ids);
  if (!keys.status().ok()) return keys.status();
  return ValidateConfig(config, path);
}

}  // namespace ridge::worker
