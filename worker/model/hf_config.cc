#include "worker/model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/rope_table.h"
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

  const std::string& path() const { return path_; }
  const absl::Status& status() const { return status_; }
  void Update(const absl::Status& status) { status_.Update(status); }

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

  double Positive(const char* key) {
    const json* value = Find(key);
    const double number = value != nullptr && value->is_number() ? value->get<double>() : 0.0;
    if (std::isfinite(number) && number > 0.0) return number;
    Fail(key, value == nullptr ? "missing" : "not a positive number");
    return 1.0;
  }

  std::string StringOr(const char* key, const char* fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) {
      Fail(key, "not a string");
      return fallback;
    }
    return value->get<std::string>();
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
  if (name == "Qwen3ForCausalLM") return Architecture::kQwen3;
  keys.FailUnsupported(
      "architectures",
      absl::StrCat(absl::CHexEscape(name.substr(0, 60)),
                   " is not supported, only LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM"));
  return keys.status();
}

// Scaled positions: what divides each frequency.
void ReadRopeScaling(KeyReader& rope, ModelConfig& config) {
  const char* type_key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string type = rope.StringOr(type_key, "default");
  if (rope.FloatOr("partial_rotary_factor", 1.0f) != 1.0f) {
    rope.FailUnsupported("partial_rotary_factor", "only 1 is supported");
  }
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    return rope.FailUnsupported(type_key,
                                absl::StrCat("\"", absl::CHexEscape(type.substr(0, 40)),
                                             "\" is not supported, only default, linear and llama3"));
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
void ReadRope(KeyReader& keys, ModelConfig& config) {
  config.rope_theta = keys.FloatOr("rope_theta", 10000.0f);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* nested = keys.Find(key);
    if (nested == nullptr) continue;
    if (!nested->is_object()) return keys.Fail(key, "not an object");
    KeyReader rope(*nested, absl::StrCat(keys.path(), ": ", key));
    config.rope_theta = rope.FloatOr("rope_theta", config.rope_theta);
    ReadRopeScaling(rope, config);
    keys.Update(rope.status());
  }
}

void RefuseWhatIsNotBuilt(KeyReader& keys, Architecture architecture) {
  const json* activation = keys.Find("hidden_act");
  if (activation != nullptr && *activation != "silu")
    keys.FailUnsupported("hidden_act", "only silu is supported");
  if (keys.BoolOr("mlp_bias", false)) keys.FailUnsupported("mlp_bias", "not supported");
  if (architecture != Architecture::kQwen2 && keys.BoolOr("attention_bias", false)) {
    keys.FailUnsupported("attention_bias",
                         absl::StrCat("not supported for ", ArchitectureName(architecture)));
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
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  config.qk_norm = config.architecture == Architecture::kQwen3;
  config.tied_embedding = keys.BoolOr("tie_word_embeddings", false);
  AddIds(keys.Ids("eos_token_id"), config.eos_token_ids);
  config.bos_token_id = keys.IntOr("bos_token_id", -1);
  RefuseWhatIsNotBuilt(keys, config.architecture);
  if (!keys.status().ok()) return keys.status();
  // The frequencies' number is bounded first.
  if (absl::Status status = ValidateConfig(config, path); !status.ok()) return status;
  ReadRope(keys, config);
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
