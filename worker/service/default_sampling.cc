#include "worker/service/default_sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/read_file.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace ridge::worker {
namespace {

using nlohmann::json;

constexpr char kFlag[] = "--default_sampling";
constexpr char kFile[] = "generation_config.json";
constexpr int64_t kMaxBytes = 1 << 20;
constexpr size_t kMostShown = 40;  // bytes of a key or a value, in a message

// What is made of a key.
enum class Use {
  kTaken,     // a default of the requests' sampling fields
  kIgnored,   // changes no output here, or is read elsewhere (eos_token_id)
  kReported,  // a request's own limit, which is no sampling field
  kNotBuilt,  // would change outputs
};

struct Key {
  absl::string_view name;
  Use use;
  absl::string_view off = "null";  // kNotBuilt: the value that means nothing, in JSON; null, [] and {} do too
};

// All that the format knows. A key that is not here may mean anything, so it stops the start like one that is
// not built.
constexpr Key kKeys[] = {
    {"do_sample", Use::kTaken},
    {"temperature", Use::kTaken},
    {"top_k", Use::kTaken},
    {"top_p", Use::kTaken},
    {"min_p", Use::kTaken},
    {"repetition_penalty", Use::kTaken},
    {"presence_penalty", Use::kTaken},
    {"frequency_penalty", Use::kTaken},
    // Where the file comes from.
    {"_from_model_config", Use::kIgnored},
    {"_commit_hash", Use::kIgnored},
    {"transformers_version", Use::kIgnored},
    // Tokens: the ends are the model's, read with its configuration; the beginning is the tokenizer's.
    {"bos_token_id", Use::kIgnored},
    {"eos_token_id", Use::kIgnored},
    {"pad_token_id", Use::kIgnored},
    {"decoder_start_token_id", Use::kIgnored},
    // Caches and speed.
    {"use_cache", Use::kIgnored},
    {"cache_implementation", Use::kIgnored},
    {"cache_config", Use::kIgnored},
    {"return_legacy_cache", Use::kIgnored},
    {"prefill_chunk_size", Use::kIgnored},
    {"low_memory", Use::kIgnored},
    {"compile_config", Use::kIgnored},
    {"disable_compile", Use::kIgnored},
    // Drafting, which keeps the distribution.
    {"is_assistant", Use::kIgnored},
    {"num_assistant_tokens", Use::kIgnored},
    {"num_assistant_tokens_schedule", Use::kIgnored},
    {"assistant_confidence_threshold", Use::kIgnored},
    {"assistant_early_exit", Use::kIgnored},
    {"assistant_lookbehind", Use::kIgnored},
    {"target_lookbehind", Use::kIgnored},
    {"prompt_lookup_num_tokens", Use::kIgnored},
    {"max_matching_ngram_size", Use::kIgnored},
    // What a call of that library returns.
    {"output_attentions", Use::kIgnored},
    {"output_hidden_states", Use::kIgnored},
    {"output_scores", Use::kIgnored},
    {"output_logits", Use::kIgnored},
    {"return_dict_in_generate", Use::kIgnored},
    // Of logits that are finite and are normalised in any case.
    {"remove_invalid_values", Use::kIgnored},
    {"renormalize_logits", Use::kIgnored},
    // Of beams, of which num_beams has to be 1.
    {"early_stopping", Use::kIgnored},
    {"length_penalty", Use::kIgnored},
    {"max_length", Use::kReported},
    {"max_new_tokens", Use::kReported},
    {"num_beams", Use::kNotBuilt, "1"},
    {"num_beam_groups", Use::kNotBuilt, "1"},
    {"diversity_penalty", Use::kNotBuilt, "0"},
    {"num_return_sequences", Use::kNotBuilt, "1"},
    {"min_length", Use::kNotBuilt, "0"},
    {"min_new_tokens", Use::kNotBuilt, "0"},
    {"max_time", Use::kNotBuilt},
    {"stop_strings", Use::kNotBuilt},
    {"typical_p", Use::kNotBuilt, "1"},
    {"epsilon_cutoff", Use::kNotBuilt, "0"},
    {"eta_cutoff", Use::kNotBuilt, "0"},
    {"penalty_alpha", Use::kNotBuilt, "0"},
    {"dola_layers", Use::kNotBuilt},
    {"guidance_scale", Use::kNotBuilt, "1"},
    {"no_repeat_ngram_size", Use::kNotBuilt, "0"},
    {"encoder_repetition_penalty", Use::kNotBuilt, "1"},
    {"encoder_no_repeat_ngram_size", Use::kNotBuilt, "0"},
    {"exponential_decay_length_penalty", Use::kNotBuilt},
    {"bad_words_ids", Use::kNotBuilt},
    {"force_words_ids", Use::kNotBuilt},
    {"constraints", Use::kNotBuilt},
    {"suppress_tokens", Use::kNotBuilt},
    {"begin_suppress_tokens", Use::kNotBuilt},
    {"sequence_bias", Use::kNotBuilt},
    {"forced_bos_token_id", Use::kNotBuilt},
    {"forced_eos_token_id", Use::kNotBuilt},
    {"forced_decoder_ids", Use::kNotBuilt},
    {"token_healing", Use::kNotBuilt, "false"},
    {"watermarking_config", Use::kNotBuilt},
    {"generation_kwargs", Use::kNotBuilt},
};

const Key* FindKey(absl::string_view name) {
  const Key* key = std::ranges::find(kKeys, name, &Key::name);
  return key == std::end(kKeys) ? nullptr : key;
}

bool IsOff(const json& value, absl::string_view off) {
  return value.empty() || value == json::parse(off);  // null, [] and {} are empty
}

absl::Status CheckKey(const std::string& name, const json& value) {
  const Key* key = FindKey(name);
  if (key == nullptr) {
    return value.empty()
               ? absl::OkStatus()
               : InvalidField(absl::CHexEscape(name.substr(0, kMostShown)), "not a key that is known here");
  }
  if (key->use == Use::kReported && !value.empty()) {
    LogWarning("{}: {} of {} is not taken: a request says it by max_tokens", kFlag, name, kFile);
  }
  if (key->use != Use::kNotBuilt || IsOff(value, key->off)) return absl::OkStatus();
  return InvalidField(name, absl::StrCat(value.dump(-1, ' ', /*ensure_ascii=*/true).substr(0, kMostShown),
                                         ": not supported yet"));
}

// A number in [low, high]; `fallback` where the key is missing or null.
absl::StatusOr<double> Number(const json& object, const char* key, double fallback, double low, double high) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return fallback;
  const double value = it->is_number() ? it->get<double>() : NAN;
  if (!(value >= low && value <= high)) {
    return InvalidField(key, absl::StrCat("not a number in ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<bool> IsGreedy(const json& object) {
  const auto it = object.find("do_sample");
  if (it == object.end() || it->is_null()) return false;
  if (!it->is_boolean()) return InvalidField("do_sample", "neither true nor false");
  return !it->get<bool>();
}

}  // namespace

absl::StatusOr<SamplingParams> SamplingFromJson(absl::string_view text) {
  const json object = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  for (const auto& [name, value] : object.items()) {
    if (absl::Status status = CheckKey(name, value); !status.ok()) return status;
  }
  const absl::StatusOr<bool> greedy = IsGreedy(object);
  if (!greedy.ok()) return greedy.status();
  const absl::StatusOr<double> temperature = Number(object, "temperature", 1, 0, 100);
  const absl::StatusOr<double> top_p = Number(object, "top_p", 1, 1e-9, 1);
  const absl::StatusOr<double> top_k = Number(object, "top_k", 0, 0, INT32_MAX);
  const absl::StatusOr<double> min_p = Number(object, "min_p", 0, 0, 1);
  const absl::StatusOr<double> repetition_penalty = Number(object, "repetition_penalty", 1, 1e-9, 10);
  const absl::StatusOr<double> presence_penalty = Number(object, "presence_penalty", 0, -2, 2);
  const absl::StatusOr<double> frequency_penalty = Number(object, "frequency_penalty", 0, -2, 2);
  for (const absl::StatusOr<double>* value :
       {&temperature, &top_p, &top_k, &min_p, &repetition_penalty, &presence_penalty, &frequency_penalty}) {
    if (!value->ok()) return value->status();
  }
  SamplingParams sampling;
  sampling.temperature = *greedy ? 0.0f : static_cast<float>(*temperature);
  sampling.top_p = static_cast<float>(*top_p);
  sampling.top_k = static_cast<int32_t>(*top_k);
  sampling.min_p = static_cast<float>(*min_p);
  sampling.repetition_penalty = static_cast<float>(*repetition_penalty);
  sampling.presence_penalty = static_cast<float>(*presence_penalty);
  sampling.frequency_penalty = static_cast<float>(*frequency_penalty);
  return sampling;
}

absl::StatusOr<SamplingParams> SamplingFromModel(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / kFile;
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (!text.ok()) {
    return InvalidField(kFlag, absl::StrCat("model needs a Hugging Face directory with ", kFile, " (",
                                            text.status().message(), ")"));
  }
  absl::StatusOr<SamplingParams> sampling = SamplingFromJson(*text);
  if (!sampling.ok()) {
    return InvalidField(kFlag, absl::StrCat(path.string(), ": ", sampling.status().message()));
  }
  return sampling;
}

}  // namespace ridge::worker
