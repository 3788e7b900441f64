#include "router/unary_relay.h"

#include <utility>

#include "common/status.h"

namespace ridge::router {

UnaryRelay::UnaryRelay(Upstreams* upstreams, grpc::CallbackServerContext* context, std::string method,
                       grpc::ByteBuffer* response)
    : upstreams_(upstreams), context_(context), method_(std::move(method)), response_(response) {}

void UnaryRelay::Start(const grpc::ByteBuffer& request, const std::string& model) {
  request_ = request;
  attempts_ = std::make_unique<Attempts>(upstreams_, model);
  TryNextWorker();
}

void UnaryRelay::TryNextWorker() {
  absl::StatusOr<Lease> lease = attempts_->Next();
  if (!lease.ok()) {
    Finish(ToGrpc(lease.status()));
    return;
  }
  auto call = std::make_unique<Call>(*std::move(lease));
  PassDeadlineOn(*context_, &call->context);
  Call* started = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) {
      started = call.get();
      call_ = std::move(call);
    }
  }
  if (started == nullptr) {
    Finish(CancelledStatus(*context_));
    return;
  }
  started->lease.upstream()->raw()->UnaryCall(&started->context, method_, grpc::StubOptions(), &request_,
                                              response_, [this](grpc::Status status) { OnCallDone(status); });
}

void UnaryRelay::OnCancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (call_ != nullptr) call_->context.TryCancel();
}

void UnaryRelay::OnCallDone(const grpc::Status& status) {
  std::unique_ptr<Call> call;
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    call = std::move(call_);
    cancelled = cancelled_;
  }
  if (cancelled || EndedByDeadline(*context_, status)) {
    call.reset();
    Finish(CancelledStatus(*context_));
  } else if (attempts_->WorkerLost(*call->lease.upstream(), status)) {
    call.reset();
    TryNextWorker();
  } else {
    call.reset();
    Finish(status);
  }
}

}  // namespace ridge::router
