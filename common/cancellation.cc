#include "common/cancellation.h"

#include <algorithm>

namespace ridge {
namespace {

using std::chrono::milliseconds;

// Without a deadline gRPC gives the end of time, which has no difference to now.
constexpr auto kNever = std::chrono::hours(24 * 365);

}  // namespace

absl::Status CancelledStatus(WallTime arrival, WallTime deadline, WallTime now) {
  if (deadline < arrival + kNever) {
    const auto allowed = deadline - arrival;
    const auto ahead = std::clamp<WallTime::duration>(allowed / 5, milliseconds(50), milliseconds(1000));
    if (now >= deadline - ahead - allowed / 100) return absl::DeadlineExceededError("the deadline passed");
  }
  return absl::CancelledError("the client left");
}

}  // namespace ridge
