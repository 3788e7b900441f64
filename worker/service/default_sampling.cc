#include "worker/service/default_sampling.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace ridge::worker {
namespace {

using nlohmann::json;

constexpr char kFlag[] = "--default_sampling";
constexpr char kFile[] = "generation_config.json";
constexpr uintmax_t kMaxBytes = 1 << 20;

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

// Keys with the value that means nothing.
absl::Status RefuseWhatIsNotBuilt(const json& object) {
  struct Key {
    const char* name;
    double off;
  };
  constexpr Key kKeys[] = {{"typical_p", 1},  {"epsilon_cutoff", 0},       {"eta_cutoff", 0},
                           {"num_beams", 1},  {"no_repeat_ngram_size", 0}, {"encoder_repetition_penalty", 1},
                           {"min_length", 0}, {"min_new_tokens", 0}};
  for (const Key& key : kKeys) {
    const auto it = object.find(key.name);
    if (it == object.end() || it->is_null()) continue;
    if (!it->is_number() || it->get<double>() != key.off) {
      return InvalidField(key.name, absl::StrCat(it->dump().substr(0, 40), ": not supported yet"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SamplingParams> SamplingFromJson(absl::string_view text) {
  const json object = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  if (absl::Status status = RefuseWhatIsNotBuilt(object); !status.ok()) return status;
  const auto do_sample = object.find("do_sample");
  const bool greedy = do_sample != object.end() && do_sample->is_boolean() && !do_sample->get<bool>();

  const absl::StatusOr<double> temperature = Number(object, "temperature", 1, 0, 100);
  const absl::StatusOr<double> top_p = Number(object, "top_p", 1, 1e-9, 1);
  const absl::StatusOr<double> top_k = Number(object, "top_k", 0, 0, INT32_MAX);
  const absl::StatusOr<double> min_p = Number(object, "min_p", 0, 0, 1);
  const absl::StatusOr<double> repetition_penalty = Number(object, "repetition_penalty", 1, 1e-9, 10);
  for (const absl::StatusOr<double>* value : {&temperature, &top_p, &top_k, &min_p, &repetition_penalty}) {
    if (!value->ok()) return value->status();
  }
  SamplingParams sampling;
  sampling.temperature = greedy ? 0.0f : static_cast<float>(*temperature);
  sampling.top_p = static_cast<float>(*top_p);
  sampling.top_k = static_cast<int32_t>(*top_k);
  sampling.min_p = static_cast<float>(*min_p);
  sampling.repetition_penalty = static_cast<float>(*repetition_penalty);
  return sampling;
}

absl::StatusOr<SamplingParams> SamplingFromModel(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / kFile;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMaxBytes) {
    return InvalidField(kFlag,
                        absl::StrCat("model needs a Hugging Face directory with ", kFile, " (", path.string(),
                                     error ? ": cannot be read)" : ": larger than 1 MiB)"));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<SamplingParams> sampling = SamplingFromJson(text);
  if (!sampling.ok()) {
    return InvalidField(kFlag, absl::StrCat(path.string(), ": ", sampling.status().message()));
  }
  return sampling;
}

}  // namespace ridge::worker
