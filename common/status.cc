#include "common/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "google/rpc/error.pb.h"

namespace ridge {
namespace {

// A payload of the status: a serialized google.rpc.Status.
constexpr char kDetailsUrl[] = "ridge/details";
constexpr char kDomain[] = "ridge";
constexpr size_t kMaxDetailsBytes = 2048;
constexpr size_t kMaxQuotedBytes = 128;

// As gRPC writes a byte of a status message.
size_t EncodedSize(char c) {
  return c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
}

// The text, or its beginning, up to a whole character, and "...": at most `limit` bytes when encoded.
std::string CutText(absl::string_view text, size_t limit) {
  constexpr absl::string_view kMore = "...";
  size_t encoded = 0;
  size_t kept = 0;  // bytes that leave room for kMore
  for (size_t i = 0; i < text.size(); ++i) {
    encoded += EncodedSize(text[i]);
    if (encoded > limit) {
      text = text.substr(0, kept);
      text.remove_suffix(IncompleteUtf8Suffix(text));
      return absl::StrCat(text, kMore);
    }
    if (encoded + kMore.size() <= limit) kept = i + 1;
  }
  return std::string(text);
}

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

// RESOURCE_EXHAUSTED with its reason, and when to try again where that may help.
absl::Status Refusal(absl::string_view reason, absl::string_view message,
                     std::optional<absl::Duration> retry_after) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kDomain);
  google::rpc::Status details;
  details.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  details.set_message(CutText(message, kMaxMessageBytes));
  details.add_details()->PackFrom(info);
  if (retry_after.has_value()) {
    google::rpc::RetryInfo retry;
    absl::Duration rest;
    retry.mutable_retry_delay()->set_seconds(absl::IDivDuration(*retry_after, absl::Seconds(1), &rest));
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
    details.add_details()->PackFrom(retry);
  }
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kDetailsUrl, absl::Cord(details.SerializeAsString()));
  return status;
}

}  // namespace

absl::Status Overloaded(absl::string_view reason, absl::string_view message, absl::Duration retry_after) {
  return Refusal(reason, message, retry_after);
}

absl::Status TooLarge(absl::string_view reason, absl::string_view message) {
  return Refusal(reason, message, std::nullopt);
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  return RetryAfterOf(DetailsOf(status));
}

std::optional<absl::Duration> RetryAfter(const grpc::Status& status) {
  return RetryAfterOf(status.error_details());
}

std::string RefusalReason(const grpc::Status& status) {
  google::rpc::Status message;
  if (!message.ParseFromString(status.error_details())) return "";
  for (const google::protobuf::Any& detail : message.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info) && info.domain() == kDomain) return info.reason();
  }
  return "";
}

std::string RetryTrailer(absl::Duration retry_after) {
  return absl::StrCat(absl::ToInt64Milliseconds(retry_after));
}

grpc::Status ToGrpc(const absl::Status& status) {
  // Both enumerations are the canonical codes, with the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      CutText(status.message(), kMaxMessageBytes), DetailsOf(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status Cut(const grpc::Status& status) {
  const std::string details = status.error_details();
  return grpc::Status(status.error_code(), CutText(status.error_message(), kMaxMessageBytes),
                      details.size() <= kMaxDetailsBytes ? details : "");
}

std::string Quoted(absl::string_view value) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(CutText(value, kMaxQuotedBytes)), "\"");
}

absl::Status InvalidField(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

}  // namespace ridge
