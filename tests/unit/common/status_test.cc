#include "common/status.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
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

TEST(StatusTest, ARefusalHasAReasonAndGrpcsOwnErrorHasNone) {
  EXPECT_EQ(RefusalReason(ToGrpc(Overloaded("QUEUE_FULL", "8 wait", absl::Seconds(1)))), "QUEUE_FULL");
  const grpc::Status too_large = ToGrpc(TooLarge("KV_CACHE_TOO_SMALL", "needs 5000 tokens"));
  EXPECT_EQ(too_large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(too_large.error_message(), "needs 5000 tokens");
  EXPECT_EQ(RefusalReason(too_large), "KV_CACHE_TOO_SMALL");
  EXPECT_EQ(RetryAfter(too_large), std::nullopt);
  EXPECT_EQ(RefusalReason(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "message too long")), "");
}

std::string Sent(const std::string& message) {
  return ToGrpc(absl::InvalidArgumentError(message)).error_message();
}

std::string Repeated(int times, const std::string& text) {
  std::string repeated;
  for (int i = 0; i < times; ++i) repeated += text;
  return repeated;
}

TEST(StatusTest, AMessageThatJustFitsStaysWhole) {
  const std::string ascii(kMaxMessageBytes, 'x');
  EXPECT_EQ(Sent(ascii), ascii);
  EXPECT_EQ(Sent(ascii + "x"), ascii.substr(3) + "...");
}

TEST(StatusTest, AMessageIsCutByItsEncodedSizeBetweenCharacters) {
  // Nine encoded bytes each: 113 are 1017, and 7 bytes are left.
  const std::string fits = Repeated(113, "漢") + "1234567";
  EXPECT_EQ(Sent(fits), fits);
  EXPECT_EQ(Sent(fits + "8"), Repeated(113, "漢") + "1234...");
  EXPECT_EQ(Sent(Repeated(2000, "漢")), Repeated(113, "漢") + "...");
  EXPECT_EQ(Sent(absl::StrCat("x", Repeated(2000, "é"))), absl::StrCat("x", Repeated(170, "é"), "..."));
  EXPECT_EQ(Sent(std::string(2000, '%')), std::string(340, '%') + "...");
  EXPECT_EQ(Sent(std::string(2000, '\n')), std::string(340, '\n') + "...");
}

TEST(StatusTest, AStatusOfAnotherServerIsCutAsWell) {
  const grpc::Status cut =
      Cut(grpc::Status(grpc::StatusCode::INTERNAL, std::string(9000, 'x'), std::string(9000, 'y')));
  EXPECT_EQ(cut.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(cut.error_message(), std::string(kMaxMessageBytes - 3, 'x') + "...");
  EXPECT_EQ(cut.error_details(), "");
  const grpc::Status ours = ToGrpc(Overloaded("QUEUE_FULL", std::string(9000, 'x'), absl::Seconds(3)));
  EXPECT_EQ(RetryAfter(Cut(ours)), absl::Seconds(3));
  EXPECT_LE(ours.error_message().size() + ours.error_details().size(), 2500u);
}

TEST(StatusTest, AQuotedValueIsShortAndOnOneLine) {
  EXPECT_EQ(Quoted("assistent"), "\"assistent\"");
  EXPECT_EQ(Quoted("a\n\"b\""), "\"a\\n\\\"b\\\"\"");
  EXPECT_EQ(Quoted(std::string(128, 'r')), absl::StrCat("\"", std::string(128, 'r'), "\""));
  EXPECT_EQ(Quoted(std::string(9000, 'r')), absl::StrCat("\"", std::string(125, 'r'), "...\""));
  EXPECT_EQ(Quoted(Repeated(9000, "漢")), absl::StrCat("\"", Repeated(13, "漢"), "...\""));
}

}  // namespace
}  // namespace ridge
