#include "router/attempts.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/status.h"

namespace ridge::router {
namespace {

constexpr size_t kMaxAttempts = 3;

// Client, router and worker each run their own timer, on a deadline that gRPC rounds.
constexpr std::chrono::milliseconds kTimerTolerance(50);

bool DeadlinePassed(const grpc::CallbackServerContext& context) {
  return context.deadline() <= std::chrono::system_clock::now() + kTimerTolerance;
}

}  // namespace

Attempts::Attempts(Upstreams* upstreams, std::string model)
    : upstreams_(upstreams), model_(std::move(model)) {}

absl::StatusOr<Lease> Attempts::Next() {
  if (tried_.size() == kMaxAttempts) return FromGrpc(last_failure_);
  absl::StatusOr<Lease> lease = upstreams_->Acquire(model_, tried_);
  if (!lease.ok() && !tried_.empty()) return FromGrpc(last_failure_);
  return lease;
}

bool Attempts::WorkerLost(const Upstream& worker, const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
      status.error_code() != grpc::StatusCode::CANCELLED) {
    return false;
  }
  tried_.push_back(&worker);
  last_failure_ = grpc::Status(grpc::StatusCode::UNAVAILABLE,
                               absl::StrCat("worker ", worker.address(), ": ", status.error_message()));
  LogWarning("call lost at worker {}: {}", worker.address(), status.error_message());
  return true;
}

void PassDeadlineOn(const grpc::CallbackServerContext& from, grpc::ClientContext* to) {
  to->set_deadline(from.deadline());
}

bool EndedByDeadline(const grpc::CallbackServerContext& context, const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::CANCELLED && DeadlinePassed(context);
}

grpc::Status CancelledStatus(const grpc::CallbackServerContext& context) {
  if (DeadlinePassed(context)) {
    return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline passed");
  }
  return grpc::Status(grpc::StatusCode::CANCELLED, "the client cancelled");
}

}  // namespace ridge::router
