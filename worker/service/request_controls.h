// The fields of a request that say which tokens may be generated: biases, masks, bad words, min_tokens. Pure
// functions; errors are INVALID_ARGUMENT with the field's name.
#pragma once

#include "absl/status/status.h"
#include "ridge/v1/inference.pb.h"
#include "worker/service/request.h"
#include "worker/service/served_model.h"

namespace ridge::worker {

// Fills call->spec.controls and call->spec.bans, and what ToProto needs of them, from the request and
// call->spec.stop_ids.
absl::Status ResolveControls(const v1::GenerateRequest& request, const ServedModel& model,
                             ResolvedCall* call);

// The fields again, as Resolve would take them.
void ControlsToProto(const ResolvedCall& call, v1::GenerateRequest* request);

}  // namespace ridge::worker
