// What the unary methods of ridge.v1.Inference answer. Pure functions; errors name the field.
#pragma once

#include "absl/status/statusor.h"
#include "ridge/v1/inference.pb.h"
#include "worker/service/served_model.h"

namespace ridge::worker {

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request, const ServedModel& model);

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ServedModel& model);

absl::StatusOr<v1::GetModelResponse> GetModel(const v1::GetModelRequest& request, const ServedModel& model);

}  // namespace ridge::worker
