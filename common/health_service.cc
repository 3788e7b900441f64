#include "common/health_service.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace ridge {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One stream of Watch. Lock order: the service's mutex, then the watcher's.
class HealthService::Watcher : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* owner, std::string service) : owner_(owner), service_(std::move(service)) {}

  const std::string& service() const { return service_; }

  void Notify(Status status) {
    absl::MutexLock lock(&mutex_);
    latest_ = status;
    WriteIfNews();
  }

  void End() {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the server is shutting down"));
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (ok) WriteIfNews();
  }

  void OnCancel() override { End(); }

  void OnDone() override {
    owner_->Remove(this);
    delete this;
  }

 private:
  void WriteIfNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_ || writing_ || latest_ == written_) return;
    writing_ = true;
    written_ = latest_;
    message_.set_status(latest_);
    StartWrite(&message_);
  }

  HealthService* const owner_;
  const std::string service_;
  absl::Mutex mutex_;
  HealthCheckResponse message_;
  Status latest_ ABSL_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  Status written_ ABSL_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

HealthService::~HealthService() {
  absl::MutexLock lock(&mutex_);
  RIDGE_CHECK(watchers_.empty());  // the server, which waits for its streams, goes first
}

void HealthService::SetServing(const std::string& service, bool serving) {
  absl::MutexLock lock(&mutex_);
  statuses_[service] = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  for (Watcher* watcher : watchers_) {
    if (watcher->service() == service) watcher->Notify(statuses_[service]);
  }
}

void HealthService::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  for (Watcher* watcher : watchers_) watcher->End();
}

HealthService::Status HealthService::StatusOf(const std::string& service) {
  const auto it = statuses_.find(service);
  return it == statuses_.end() ? HealthCheckResponse::SERVICE_UNKNOWN : it->second;
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::MutexLock lock(&mutex_);
  const Status status = StatusOf(request->service());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish(ToGrpc(
        absl::NotFoundError(absl::StrCat("service: ", Quoted(request->service()), " is not served here"))));
  } else {
    response->set_status(status);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(grpc::CallbackServerContext* /*context*/,
                                                                    const HealthCheckRequest* request) {
  auto* watcher = new Watcher(this, request->service());  // deletes itself in OnDone
  absl::MutexLock lock(&mutex_);
  watchers_.insert(watcher);
  watcher->Notify(StatusOf(request->service()));
  if (closed_) watcher->End();
  return watcher;
}

void HealthService::Remove(Watcher* watcher) {
  absl::MutexLock lock(&mutex_);
  watchers_.erase(watcher);
}

}  // namespace ridge
