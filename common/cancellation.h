// Why a call that its client gave up ended.
#pragma once

#include <chrono>

#include "absl/status/status.h"

namespace ridge {

using WallTime = std::chrono::system_clock::time_point;

// DEADLINE_EXCEEDED or CANCELLED. `deadline` is gRPC's for the call, `arrival` when it came.
//
// A client whose time is up says no more than that it leaves, and leaves before the deadline as it is known
// here has passed: the clock here starts when the request has arrived, and gRPC rounds the time up. So
// whoever leaves near the deadline left because of it: in the last fifth of the time (50 ms to 1 s), and one
// per cent.
absl::Status CancelledStatus(WallTime arrival, WallTime deadline, WallTime now);

}  // namespace ridge
