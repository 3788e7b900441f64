#include "common/cancellation.h"

#include <algorithm>

#include "grpc/support/time.h"

namespace ridge {
namespace {

using std::chrono::milliseconds;

// Who allows a call so much time sets it no limit.
constexpr std::chrono::seconds kNever = std::chrono::hours(24 * 365);

}  // namespace

WallTime DeadlineOf(const grpc::CallbackServerContext& context) {
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_REALTIME);
  if (deadline.tv_sec > gpr_now(GPR_CLOCK_REALTIME).tv_sec + kNever.count()) return WallTime::max();
  return context.deadline();
}

absl::Status CancelledStatus(WallTime arrival, WallTime deadline, WallTime now) {
  if (deadline != WallTime::max()) {
    const auto allowed = deadline - arrival;
    const auto ahead = std::clamp<WallTime::duration>(allowed / 5, milliseconds(50), milliseconds(1000));
    if (now >= deadline - ahead - allowed / 100) return absl::DeadlineExceededError("the deadline passed");
  }
  return absl::CancelledError("the client left");
}

}  // namespace ridge
