// ridge.v1.Worker: what routers speak.
//
// Threads: everything is thread-safe; one thread of its own looks at the load while somebody wants to know
// it. Close ends the load streams, so that the server can shut down.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ridge/v1/worker.grpc.pb.h"
#include "worker/service/generate_call.h"

namespace ridge::worker {

using RawWorkerService = v1::Worker::WithRawCallbackMethod_Execute<
    v1::Worker::WithCallbackMethod_WatchLoad<v1::Worker::WithCallbackMethod_Drain<v1::Worker::Service>>>;

class WorkerService final : public RawWorkerService {
 public:
  // `report` gives the load of the moment; `drain` stops admission. Neither may block.
  WorkerService(const CallEnvironment& environment, std::function<v1::LoadReport()> report,
                std::function<void()> drain);
  ~WorkerService() override;

  void Close();

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Execute(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<v1::LoadReport>* WatchLoad(grpc::CallbackServerContext* context,
                                                      const v1::WatchLoadRequest* request) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

 private:
  class Watcher;

  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !watchers_.empty() || !drains_.empty();
  }
  // Tells watchers of the load, and drains of the last stream's end.
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Watcher* watcher);

  const CallEnvironment environment_;
  const std::function<v1::LoadReport()> report_;
  const std::function<void()> drain_;
  absl::Mutex mutex_;
  std::set<Watcher*> watchers_ ABSL_GUARDED_BY(mutex_);
  std::vector<grpc::ServerUnaryReactor*> drains_ ABSL_GUARDED_BY(mutex_);  // wait for the last stream's end
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ridge::worker
