#include "common/status.h"

#include <gtest/gtest.h>

#include "google/rpc/error.pb.h"

namespace ridge {
namespace {

struct Pair {
  absl::StatusCode absl_code;
  grpc::StatusCode grpc_code;
};

constexpr Pair kPairs[] = {
    {absl::StatusCode::kCancelled, grpc::StatusCode::CANCELLED},
    {absl::StatusCode::kUnknown, grpc::StatusCode::UNKNOWN},
    {absl::StatusCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {absl::StatusCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {absl::StatusCode::kNotFound, grpc::StatusCode::NOT_FOUND},
    {absl::StatusCode::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS},
    {absl::StatusCode::kPermissionDenied, grpc::StatusCode::PERMISSION_DENIED},
    {absl::StatusCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {absl::StatusCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION},
    {absl::StatusCode::kAborted, grpc::StatusCode::ABORTED},
    {absl::StatusCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE},
    {absl::StatusCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED},
    {absl::StatusCode::kInternal, grpc::StatusCode::INTERNAL},
    {absl::StatusCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {absl::StatusCode::kDataLoss, grpc::StatusCode::DATA_LOSS},
    {absl::StatusCode::kUnauthenticated, grpc::StatusCode::UNAUTHENTICATED},
};

TEST(StatusTest, EveryCodeMapsToItsNamesake) {
  for (const Pair& pair : kPairs) {
    const grpc::Status status = ToGrpc(absl::Status(pair.absl_code, "why"));
    EXPECT_EQ(status.error_code(), pair.grpc_code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_EQ(FromGrpc(grpc::Status(pair.grpc_code, "why")), absl::Status(pair.absl_code, "why"));
  }
}

TEST(StatusTest, OkStaysOk) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusTest, InvalidFieldNamesTheFieldFirst) {
  EXPECT_EQ(InvalidField("sampling.top_p", "must be in (0, 1]"),
            absl::InvalidArgumentError("sampling.top_p: must be in (0, 1]"));
}

TEST(StatusTest, OverloadSaysWhenToTryAgain) {
  const absl::Status status = Overloaded("QUEUE_FULL", "8 requests wait", absl::Milliseconds(2500));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(status), absl::Milliseconds(2500));
  EXPECT_EQ(RetryAfter(absl::ResourceExhaustedError("for good")), std::nullopt);

  const grpc::Status sent = ToGrpc(status);
  EXPECT_EQ(RetryAfter(sent), absl::Milliseconds(2500));
  EXPECT_EQ(RetryTrailer(*RetryAfter(sent)), "2500");
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(sent.error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "8 requests wait");
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  EXPECT_EQ(info.reason(), "QUEUE_FULL");
  EXPECT_EQ(RetryAfter(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "", "no message")), std::nullopt);
}

}  // namespace
}  // namespace ridge
