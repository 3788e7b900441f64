// The sampling fields of a request. Pure functions; errors are INVALID_ARGUMENT with the field's name.
#pragma once

#include "absl/status/statusor.h"
#include "ridge/v1/inference.pb.h"
#include "worker/backend/sampling_params.h"
#include "worker/service/served_model.h"

namespace ridge::worker {

// Absent fields take the model's defaults; an absent seed is drawn.
absl::StatusOr<SamplingParams> ResolveSampling(const v1::SamplingParams& sampling, const ServedModel& model);

// Every field of SamplingParams that a request has, but the seed.
v1::SamplingParams SamplingToProto(const SamplingParams& sampling);

}  // namespace ridge::worker
