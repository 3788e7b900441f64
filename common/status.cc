#include "common/status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace ridge {

grpc::Status ToGrpc(const absl::Status& status) {
  // Both enumerations are the canonical codes, with the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status InvalidField(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

}  // namespace ridge
