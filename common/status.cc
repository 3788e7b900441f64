#include "common/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error.pb.h"

namespace ridge {
namespace {

// A payload of the status: a serialized google.rpc.Status.
constexpr char kDetailsUrl[] = "ridge/details";

std::string DetailsOf(const absl::Status& status) {
  const auto details = status.GetPayload(kDetailsUrl);
  return details.has_value() ? std::string(*details) : "";
}

std::optional<absl::Duration> RetryAfterOf(const std::string& details) {
  google::rpc::Status message;
  if (details.empty() || !message.ParseFromString(details)) return std::nullopt;
  for (const google::protobuf::Any& detail : message.details()) {
    google::rpc::RetryInfo retry;
    if (!detail.UnpackTo(&retry)) continue;
    return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
  }
  return std::nullopt;
}

}  // namespace

absl::Status Overloaded(absl::string_view reason, absl::string_view message, absl::Duration retry_after) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("ridge");
  google::rpc::RetryInfo retry;
  absl::Duration rest;
  retry.mutable_retry_delay()->set_seconds(absl::IDivDuration(retry_after, absl::Seconds(1), &rest));
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  google::rpc::Status details;
  details.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  details.set_message(std::string(message));
  details.add_details()->PackFrom(info);
  details.add_details()->PackFrom(retry);
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kDetailsUrl, absl::Cord(details.SerializeAsString()));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  return RetryAfterOf(DetailsOf(status));
}

std::optional<absl::Duration> RetryAfter(const grpc::Status& status) {
  return RetryAfterOf(status.error_details());
}

std::string RetryTrailer(absl::Duration retry_after) {
  return absl::StrCat(absl::ToInt64Milliseconds(retry_after));
}

grpc::Status ToGrpc(const absl::Status& status) {
  // Both enumerations are the canonical codes, with the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      DetailsOf(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status InvalidField(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

}  // namespace ridge
