// What a GenerateRequest may ask for: ranges, sizes and what the device can do. Errors are INVALID_ARGUMENT
// and name the field. Pure functions.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "ridge/v1/inference.pb.h"
#include "worker/backend/sampling_params.h"
#include "worker/service/served_model.h"

namespace ridge::worker {

// Outputs, limits and stops. Sampling, controls and input are checked where they are resolved.
absl::Status CheckRanges(const v1::GenerateRequest& request, const ServedModel& model);

// A field that asks for something which the device cannot do; `sampling` has the request's defaults applied.
absl::Status CheckDevice(const v1::GenerateRequest& request, const SamplingParams& sampling,
                         const ServedModel& model);

// What is kept of a long prompt's log-probabilities until the first token is sent.
absl::Status CheckPromptLogprobs(const v1::GenerateRequest& request, size_t prompt_tokens);

}  // namespace ridge::worker
