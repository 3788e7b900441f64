// Errors between modules are absl::Status; they become gRPC's once, at the edge.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"

namespace ridge {

// RESOURCE_EXHAUSTED for now: trying again after that time may help. `reason` is for programs, the message
// for people.
absl::Status Overloaded(absl::string_view reason, absl::string_view message, absl::Duration retry_after);

// What Overloaded said; nothing for other errors.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

// The same of a status that came over the wire.
std::optional<absl::Duration> RetryAfter(const grpc::Status& status);

// The value of the trailer kRetryTrailer, which gRPC's own retries wait for.
inline constexpr char kRetryTrailer[] = "grpc-retry-pushback-ms";
std::string RetryTrailer(absl::Duration retry_after);

// Code for code; the message goes along. An Overloaded status carries google.rpc.RetryInfo and ErrorInfo as
// its details.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// INVALID_ARGUMENT "field: what", the form of every complaint about a request.
absl::Status InvalidField(absl::string_view field, absl::string_view what);

}  // namespace ridge
