// A call's deadline, and why a call that its client gave up ended.
#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"

namespace ridge {

using WallTime = std::chrono::system_clock::time_point;

// WallTime::max() where the client gave none, or one so far ahead that it says as much: beyond 2262 gRPC's
// own conversion overflows, and the deadline would have passed.
WallTime DeadlineOf(const grpc::CallbackServerContext& context);

// DEADLINE_EXCEEDED or CANCELLED. `deadline` is DeadlineOf the call, `arrival` when it came.
//
// A client whose time is up says no more than that it leaves, and leaves before the deadline as it is known
// here has passed: the clock here starts when the request has arrived, and gRPC rounds the time up. So
// whoever leaves near the deadline left because of it: in the last fifth of the time (50 ms to 1 s), and one
// per cent.
absl::Status CancelledStatus(WallTime arrival, WallTime deadline, WallTime now);

}  // namespace ridge
