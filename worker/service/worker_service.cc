#include "worker/service/worker_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace ridge::worker {
namespace {

constexpr absl::Duration kReportInterval = absl::Milliseconds(100);  // the shortest
constexpr int kReportsWithoutChange = 10;  // intervals until an unchanged report is sent

}  // namespace

// One stream of WatchLoad. Lock order: the service's mutex, then the watcher's.
class WorkerService::Watcher : public grpc::ServerWriteReactor<v1::LoadReport> {
 public:
  explicit Watcher(WorkerService* owner) : owner_(owner) {}

  // Called once an interval.
  void Offer(const v1::LoadReport& report) {
    absl::MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    std::string bytes = report.SerializeAsString();
    if (bytes == written_ && ++unchanged_ < kReportsWithoutChange) return;
    written_ = std::move(bytes);
    unchanged_ = 0;
    message_ = report;
    writing_ = true;
    StartWrite(&message_);
  }

  void End() {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker stops"));
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (!ok) End();
  }
  void OnCancel() override { End(); }
  void OnDone() override {
    owner_->Remove(this);
    delete this;
  }

 private:
  WorkerService* const owner_;
  absl::Mutex mutex_;
  v1::LoadReport message_;
  std::string written_ ABSL_GUARDED_BY(mutex_);
  int unchanged_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

WorkerService::WorkerService(const CallEnvironment& environment, std::function<v1::LoadReport()> report,
                             std::function<void()> drain)
    : environment_(environment),
      report_(std::move(report)),
      drain_(std::move(drain)),
      thread_([this] { Run(); }) {}

WorkerService::~WorkerService() {
  Close();
  thread_.join();
}

void WorkerService::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  for (Watcher* watcher : watchers_) watcher->End();
  for (grpc::ServerUnaryReactor* call : std::exchange(drains_, {})) {
    call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker stops"));
  }
}

void WorkerService::Run() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &WorkerService::HasWork));
    if (closed_) return;
    Look();
    mutex_.AwaitWithTimeout(absl::Condition(&closed_), kReportInterval);
  }
}

void WorkerService::Look() {
  const v1::LoadReport report = report_();
  for (Watcher* watcher : watchers_) watcher->Offer(report);
  if (environment_.open_calls->count() > 0) return;
  for (grpc::ServerUnaryReactor* call : std::exchange(drains_, {})) call->Finish(grpc::Status::OK);
}

void WorkerService::Remove(Watcher* watcher) {
  absl::MutexLock lock(&mutex_);
  watchers_.erase(watcher);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WorkerService::Execute(grpc::CallbackServerContext* context,
                                                                   const grpc::ByteBuffer* request) {
  return GenerateCall::Start(environment_, GenerateCall::Envelope::kExecute, context, *request);
}

grpc::ServerWriteReactor<v1::LoadReport>* WorkerService::WatchLoad(grpc::CallbackServerContext* /*context*/,
                                                                   const v1::WatchLoadRequest* /*request*/) {
  auto* watcher = new Watcher(this);  // deletes itself in OnDone
  absl::MutexLock lock(&mutex_);
  watchers_.insert(watcher);
  watcher->Offer(report_());
  if (closed_) watcher->End();
  return watcher;
}

grpc::ServerUnaryReactor* WorkerService::Drain(grpc::CallbackServerContext* context,
                                               const v1::DrainRequest* /*request*/,
                                               v1::DrainResponse* /*response*/) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  drain_();
  absl::MutexLock lock(&mutex_);
  if (closed_) {
    reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker stops"));
  } else {
    drains_.push_back(reactor);
  }
  return reactor;
}

}  // namespace ridge::worker
