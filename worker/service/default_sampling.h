// The sampling defaults that a model's authors give in generation_config.json.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/sampling_params.h"

namespace ridge::worker {

// Of a Hugging Face directory. Errors name the flag --default_sampling, the file and the key.
absl::StatusOr<SamplingParams> SamplingFromModel(const std::string& directory);

// do_sample: false is greedy; temperature, top_p, top_k, min_p and the penalties for repetition, presence and
// frequency are taken where present, anything absent is off. A key that asks for what is not built, or that
// is not known, is an error, since leaving it out might change the outputs; what changes none is ignored. The
// limits on length are a request's own: leaving them out is logged.
absl::StatusOr<SamplingParams> SamplingFromJson(absl::string_view text);

}  // namespace ridge::worker
