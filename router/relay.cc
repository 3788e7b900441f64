#include "router/relay.h"

#include <algorithm>
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

}  // namespace

Attempt::Attempt(Lease lease, const grpc::CallbackServerContext& client) : lease_(std::move(lease)) {
  context_.set_deadline(DeadlineOf(client));
  lease_.upstream()->Opened(this);
}

Attempt::~Attempt() {
  lease_.upstream()->Closed(this);
}

Relay::Relay(Upstreams* upstreams, grpc::CallbackServerContext* client)
    : upstreams_(upstreams), client_(client), arrival_(std::chrono::system_clock::now()) {}

void Relay::StartRelay(std::string model) {
  model_ = std::move(model);
  TryNextWorker();
}

void Relay::TryNextWorker() {
  if (tried_.size() == kMaxAttempts) {
    End(last_failure_);
    return;
  }
  absl::StatusOr<Lease> lease = upstreams_->Acquire(model_, tried_, need_);
  if (!lease.ok()) {
    // The last worker's failure says more than that there is no other.
    End(tried_.empty() ? ToGrpc(lease.status()) : last_failure_);
    return;
  }
  std::unique_ptr<Attempt> attempt = NewAttempt(*std::move(lease));
  Attempt* started = nullptr;
  std::optional<grpc::Status> stopped;
  {
    absl::MutexLock lock(&mutex_);
    stopped = stopped_;
    if (!stopped.has_value()) {
      started = attempt.get();
      attempt_ = std::move(attempt);
    }
  }
  if (stopped.has_value()) {
    attempt.reset();
    End(*stopped);
    return;
  }
  started->Start();
}

void Relay::Stop(const grpc::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (!stopped_.has_value()) stopped_ = why;
  if (attempt_ != nullptr) attempt_->Cancel();
}

void Relay::ClientLeft() {
  Stop(ToGrpc(CancelledStatus(arrival_, DeadlineOf(*client_), std::chrono::system_clock::now())));
}

bool Relay::IsLoss(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return OutputBegan() && !IsRefusal(status);
    default:
      return false;
  }
}

bool Relay::IsRefusal(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && !RefusalReason(status).empty();
}

void Relay::NoteRefusal(const Upstream& worker, const grpc::Status& status) {
  tried_.push_back(&worker);
  last_failure_ = status;
  if (RetryAfter(status).has_value()) {
    need_.queue_room = true;
  } else {
    need_.more_kv_tokens_than =
        std::max(need_.more_kv_tokens_than, worker.State().report.kv_capacity_tokens());
  }
  LogDebug("worker {} has no room: {}", worker.address(), status.error_message());
}

void Relay::AttemptEnded(const grpc::Status& ended) {
  const grpc::Status status = Cut(ended);
  std::unique_ptr<Attempt> attempt;
  std::optional<grpc::Status> stopped;
  {
    absl::MutexLock lock(&mutex_);
    attempt = std::move(attempt_);
    stopped = stopped_;
  }
  const Upstream& worker = *attempt->lease().upstream();
  const std::string why = worker.LossReason(status);
  attempt.reset();  // before the end: it must not outlive the relay
  if (stopped.has_value()) {
    End(*stopped);
    return;
  }
  if (IsRefusal(status) && !OutputBegan()) {
    NoteRefusal(worker, status);
    TryNextWorker();
    return;
  }
  if (!IsLoss(status)) {
    End(status);
    return;
  }
  if (status.error_code() == grpc::StatusCode::CANCELLED &&
      std::chrono::system_clock::now() >= DeadlineOf(*client_) - kTimerTolerance) {
    // No loss: the deadline passed at the worker first.
    End(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline passed"));
    return;
  }
  tried_.push_back(&worker);
  last_failure_ = ToGrpc(absl::UnavailableError(absl::StrCat("worker ", worker.address(), ": ", why)));
  LogWarning("call lost at worker {}: {}", worker.address(), why);
  if (OutputBegan()) {
    End(last_failure_);
  } else {
    TryNextWorker();
  }
}

}  // namespace ridge::router
