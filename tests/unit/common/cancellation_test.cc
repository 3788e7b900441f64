#include "common/cancellation.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

using std::chrono::milliseconds;

const WallTime kArrival = WallTime(std::chrono::hours(24 * 20000));

absl::StatusCode CodeOf(milliseconds allowed, milliseconds left_after) {
  return CancelledStatus(kArrival, kArrival + allowed, kArrival + left_after).code();
}

TEST(CancellationTest, AfterTheDeadlineItIsTheReason) {
  EXPECT_EQ(CodeOf(milliseconds(500), milliseconds(501)), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CodeOf(milliseconds(-3), milliseconds(0)), absl::StatusCode::kDeadlineExceeded);
}

// The request was on its way for a while, which the client's clock counts and ours does not.
TEST(CancellationTest, ALittleBeforeTheDeadlineItIsTheReasonToo) {
  EXPECT_EQ(CodeOf(milliseconds(500), milliseconds(400)), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CodeOf(milliseconds(500), milliseconds(390)), absl::StatusCode::kCancelled);
  EXPECT_EQ(CodeOf(milliseconds(100), milliseconds(50)), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CodeOf(milliseconds(60000), milliseconds(58600)), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CodeOf(milliseconds(60000), milliseconds(58000)), absl::StatusCode::kCancelled);
}

TEST(CancellationTest, WithoutADeadlineTheClientLeft) {
  EXPECT_EQ(CancelledStatus(kArrival, WallTime::max(), kArrival).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace ridge
