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

// RESOURCE_EXHAUSTED for as long as the server is as it is: only one with more memory may help.
absl::Status TooLarge(absl::string_view reason, absl::string_view message);

// What Overloaded said; nothing for other errors.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

// The same of a status that came over the wire.
std::optional<absl::Duration> RetryAfter(const grpc::Status& status);

// The reason of an Overloaded or TooLarge status that came over the wire. Empty for other errors, among them
// the RESOURCE_EXHAUSTED of gRPC itself.
std::string RefusalReason(const grpc::Status& status);

// The value of the trailer kRetryTrailer, which gRPC's own retries wait for.
inline constexpr char kRetryTrailer[] = "grpc-retry-pushback-ms";
std::string RetryTrailer(absl::Duration retry_after);

// A status travels as HTTP/2 trailers, percent-encoded. A client takes 8 KiB of them, and gRPC answers more
// by closing the connection with all that is open on it: so messages are cut to this many encoded bytes.
inline constexpr size_t kMaxMessageBytes = 1024;

// Code for code; the message goes along, cut with "..." where it is too long. An Overloaded or TooLarge
// status carries google.rpc.ErrorInfo, the former RetryInfo too, as its details.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// The same status, cut as ToGrpc's are; details that are longer than ours ever are get lost.
grpc::Status Cut(const grpc::Status& status);

// How a message shows a value that somebody sent: in quotes, on one line, and short.
std::string Quoted(absl::string_view value);

// INVALID_ARGUMENT "field: what", the form of every complaint about a request.
absl::Status InvalidField(absl::string_view field, absl::string_view what);

}  // namespace ridge
