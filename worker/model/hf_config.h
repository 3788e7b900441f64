// config.json and generation_config.json of a Hugging Face directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

// Reads both spellings of published checkpoints: rope_theta, rope_scaling and torch_dtype at the top level,
// and rope_parameters and dtype. `path` is for messages. A key that would change the computation in a way
// that is not built is an error. INVALID_ARGUMENT or UNIMPLEMENTED naming path and key.
absl::StatusOr<ModelConfig> ConfigFromHfJson(absl::string_view text, const std::string& path);

// Adds the end-of-sequence ids of a generation_config.json to those of the configuration.
absl::Status AddGenerationConfig(absl::string_view text, const std::string& path, ModelConfig& config);

}  // namespace ridge::worker
