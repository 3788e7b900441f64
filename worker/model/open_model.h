// The one door to models: what --model names.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

// A GGUF file, a Hugging Face directory, or "synthetic:NAME". Errors are one line that starts with the path.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenModel(absl::string_view path_or_synthetic);

}  // namespace ridge::worker
