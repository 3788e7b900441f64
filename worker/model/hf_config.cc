#include "worker/model/hf_config.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/rope_table.h"
#include "worker/model/family.h"
#include "worker/model/json_keys.h"

namespace ridge::worker {
namespace {

using nlohmann::json;

std::string Quoted(absl::string_view value) {
  return absl::StrCat("\"", absl::CHexEscape(value.substr(0, 60)), "\"");
}

// By architectures, or by model_type where that is missing; both have to name the same family.
const ModelFamily* ReadFamily(JsonKeys& keys) {
  const std::string type = keys.StringOr("model_type", "");
  const json* names = keys.Find("architectures");
  if (names == nullptr && !type.empty()) {
    const ModelFamily* family = FindFamily(type);
    if (family == nullptr) {
      keys.FailUnsupported("model_type",
                           absl::StrCat(Quoted(type), " is not supported, only ", FamilyNames()));
    }
    return family;
  }
  if (names == nullptr || !names->is_array() || names->size() != 1 || !names->front().is_string()) {
    keys.Fail("architectures", "a list of one name is needed");
    return nullptr;
  }
  const std::string name = names->front().get<std::string>();
  std::string known;
  for (const ModelFamily* family : ModelFamilies()) {
    if (name != family->hf_architecture) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", family->hf_architecture);
      continue;
    }
    if (type.empty() || type == family->name) return family;
    keys.FailUnsupported("model_type", absl::StrCat(Quoted(type), " is not that of ", name));
    return nullptr;
  }
  keys.FailUnsupported("architectures", absl::StrCat(Quoted(name), " is not supported, only ", known));
  return nullptr;
}

// What divides the rotary frequencies.
void ReadRopeScaling(JsonKeys& rope, ModelConfig& config) {
  const char* type_key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.StringOr(type_key, "default");
  if (rope.FloatOr("partial_rotary_factor", 1.0f) != 1.0f) {
    rope.FailUnsupported("partial_rotary_factor", "only 1 is supported");
  }
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    return rope.FailUnsupported(
        type_key, absl::StrCat(Quoted(type), " is not supported, only default, linear and llama3"));
  }
  const double factor = rope.Positive("factor");
  if (type == "linear") {
    config.rope_divisors.assign(static_cast<size_t>(config.head_dim / 2), factor);
    return;
  }
  const kernels::Llama3RopeScaling scaling = {
      .factor = factor,
      .low_freq_factor = rope.Positive("low_freq_factor"),
      .high_freq_factor = rope.Positive("high_freq_factor"),
      .original_context = rope.Positive("original_max_position_embeddings")};
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.Fail("high_freq_factor", "not above low_freq_factor");
  }
  if (!rope.status().ok()) return;
  config.rope_divisors = kernels::Llama3RopeDivisors(config.rope_theta, config.head_dim, scaling);
}

// The base of the rotary frequencies and what scales them, from the top level (rope_theta, rope_scaling) or
// from rope_parameters.
void ReadRope(JsonKeys& keys, ModelConfig& config) {
  config.rope_theta = keys.FloatOr("rope_theta", 10000.0f);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* nested = keys.Find(key);
    if (nested == nullptr) continue;
    if (!nested->is_object()) return keys.Fail(key, "not an object");
    JsonKeys rope(*nested, absl::StrCat(keys.origin(), ": ", key));
    for (const auto& [name, value] : nested->items()) {
      if (value.is_object()) rope.FailUnsupported(key, "one for each kind of layer is not supported");
    }
    config.rope_theta = rope.FloatOr("rope_theta", config.rope_theta);
    ReadRopeScaling(rope, config);
    keys.Update(rope.status());
  }
}

// Layers whose attention sees only the last tokens: an error where the context is longer than what they see.
void RefuseShortAttention(JsonKeys& keys, const ModelConfig& config) {
  const bool has_window = keys.BoolOr("use_sliding_window", false);
  const bool window_matters = keys.IntOr("sliding_window", 4096) < config.context_length;
  if (const json* types = keys.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) return keys.Fail("layer_types", "not a list");
    for (const json& type : *types) {
      if (type == "full_attention" || (type == "sliding_attention" && has_window && !window_matters))
        continue;
      return keys.FailUnsupported("layer_types", "only full_attention is supported");
    }
    return;
  }
  if (has_window && window_matters && keys.IntOr("max_window_layers", 28) < config.num_layers) {
    keys.FailUnsupported("use_sliding_window", "not supported for contexts longer than the window");
  }
}

// Keys of relatives of the families, whose computation differs.
void RefuseWhatIsNotBuilt(JsonKeys& keys, const ModelFamily& family, const ModelConfig& config) {
  for (const char* key :
       {"quantization_config", "compression_config", "attn_logit_softcapping", "final_logit_softcapping",
        "num_experts", "num_local_experts", "n_routed_experts"}) {
    const json* value = keys.Find(key);
    if (value != nullptr && *value != 0) keys.FailUnsupported(key, "not supported");
  }
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const std::string activation = keys.StringOr(key, "silu");
    if (activation != "silu" && activation != "swish") {
      keys.FailUnsupported(key, absl::StrCat(Quoted(activation), ": only silu is supported"));
    }
  }
  if (keys.FloatOr("partial_rotary_factor", 1.0f) != 1.0f) {
    keys.FailUnsupported("partial_rotary_factor", "only 1 is supported");
  }
  if (keys.BoolOr("mlp_bias", false)) keys.FailUnsupported("mlp_bias", "not supported");
  // It puts a bias on the output projection too. Qwen2's biases are not its doing.
  if (keys.BoolOr("attention_bias", false) && !family.qkv_bias) {
    keys.FailUnsupported("attention_bias", absl::StrCat("not supported for ", family.name));
  }
  RefuseShortAttention(keys, config);
}

void AddIds(const std::vector<int32_t>& more, std::vector<int32_t>& ids) {
  for (int32_t id : more) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

std::string KeyOf(absl::string_view field) {
  constexpr std::pair<absl::string_view, absl::string_view> kKeys[] = {
      {"num_layers", "num_hidden_layers"},
      {"num_heads", "num_attention_heads"},
      {"num_kv_heads", "num_key_value_heads"},
      {"mlp_size", "intermediate_size"},
      {"context_length", "max_position_embeddings"},
      {"norm_eps", "rms_norm_eps"},
      {"rope_divisors", "rope_scaling"},
      {"eos_token_ids", "eos_token_id"},
  };
  for (const auto& [ours, theirs] : kKeys) {
    if (field == ours) return std::string(theirs);
  }
  return std::string(field);
}

int32_t ReadHeadDim(JsonKeys& keys, const ModelFamily& family, const ModelConfig& config) {
  return keys.IntOr("head_dim", family.head_dim != 0 ? family.head_dim
                                                     : config.hidden_size / std::max(config.num_heads, 1));
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromHfJson(absl::string_view text, const std::string& path) {
  absl::StatusOr<json> object = ParseJsonObject(text, path);
  if (!object.ok()) return object.status();
  JsonKeys keys(*object, path);
  const ModelFamily* family = ReadFamily(keys);
  if (!keys.status().ok()) return keys.status();

  ModelConfig config;
  config.architecture = family->name;
  config.num_layers = keys.Int("num_hidden_layers");
  config.hidden_size = keys.Int("hidden_size");
  config.num_heads = keys.Int("num_attention_heads");
  config.num_kv_heads = keys.IntOr("num_key_value_heads", config.num_heads);
  config.head_dim = ReadHeadDim(keys, *family, config);
  config.mlp_size = keys.Int("intermediate_size");
  config.vocab_size = keys.Int("vocab_size");
  config.context_length = keys.Int("max_position_embeddings");
  config.norm_eps = keys.FloatOr("rms_norm_eps", 1e-6f);
  config.qkv_bias = family->qkv_bias;
  config.qk_norm = family->qk_norm;
  config.tied_embedding = keys.BoolOr("tie_word_embeddings", false);
  AddIds(keys.Ids("eos_token_id"), config.eos_token_ids);
  config.bos_token_id = keys.IntOr("bos_token_id", -1);
  RefuseWhatIsNotBuilt(keys, *family, config);
  if (!keys.status().ok()) return keys.status();
  // The frequencies' number is bounded first.
  if (absl::Status status = ValidateConfig(config, path, KeyOf); !status.ok()) return status;
  ReadRope(keys, config);
  if (!keys.status().ok()) return keys.status();
  if (absl::Status status = ValidateConfig(config, path, KeyOf); !status.ok()) return status;
  return config;
}

absl::Status AddGenerationConfig(absl::string_view text, const std::string& path, ModelConfig& config) {
  absl::StatusOr<json> object = ParseJsonObject(text, path);
  if (!object.ok()) return object.status();
  JsonKeys keys(*object, path);
  AddIds(keys.Ids("eos_token_id"), config.eos_token_ids);
  if (!keys.status().ok()) return keys.status();
  return ValidateConfig(config, path, KeyOf);
}

}  // namespace ridge::worker
