// A model's configuration from GGUF metadata and tensor shapes.
#pragma once

#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

// One F32 number for each rotary frequency, by which it is divided: Llama 3.x' scaled positions.
inline constexpr char kRopeFactorsTensor[] = "rope_freqs.weight";

// INVALID_ARGUMENT, NOT_FOUND or UNIMPLEMENTED naming file and key.
// `tensors` are those of the model, which may lie in several files.
absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file, const TensorMap& tensors);

}  // namespace ridge::worker
