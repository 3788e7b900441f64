// Requests, parsed at the edge: from a GenerateRequest to plain data with every default applied, or to an
// error that names the field. Pure functions; tokenises, which takes time on a long prompt.
//
// Errors are INVALID_ARGUMENT, NOT_FOUND for another model, FAILED_PRECONDITION for a resolved request that
// was made for other numerics. What the device cannot do is refused unless its value means "off".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ridge/v1/worker.pb.h"
#include "worker/decision/sequence.h"
#include "worker/service/served_model.h"

namespace ridge::worker {

struct ResolvedCall {
  // Complete but for request_id, arrival_ns and deadline_ns, which belong to the call and not to the request.
  SequenceSpec spec;

  std::string client_request_id;
  int32_t max_tokens_asked = 0;         // before the context limited it
  std::vector<TokenId> stop_token_ids;  // the request's own; spec.stop_ids has eos_ids too
  std::vector<TokenId> eos_ids;         // empty where they are ignored
  std::vector<std::string> stops;
  std::vector<TokenId> bad_token_ids;  // the request's own; spec.controls has those of bad words too
  std::vector<std::string> bad_words;
  int32_t num_choices = 1;
  bool echo = false;
  bool include_stop = false;
  bool skip_special = true;
  bool return_text = true;
  bool return_ids = true;
};

absl::StatusOr<ResolvedCall> Resolve(const v1::GenerateRequest& request, const ServedModel& model);

// As another worker resolved it.
absl::StatusOr<ResolvedCall> Resolve(const v1::ResolvedRequest& resolved, const ServedModel& model);

// What Resolve turns into the same call again, on any worker of the same numerics.
v1::ResolvedRequest ToProto(const ResolvedCall& call, const ServedModel& model);

}  // namespace ridge::worker
