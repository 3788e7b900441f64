// Errors between modules are absl::Status; they become gRPC's once, at the edge.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace ridge {

// Code for code; the message goes along.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// INVALID_ARGUMENT "field: what", the form of every complaint about a request.
absl::Status InvalidField(absl::string_view field, absl::string_view what);

}  // namespace ridge
