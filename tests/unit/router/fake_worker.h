// A worker that does what a test says: an in-process gRPC server of ridge.v1.Worker and Inference.
//
// Thread-safe. Stop (or the destructor) cancels what is open.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server.h"
#include "ridge/v1/inference.grpc.pb.h"
#include "ridge/v1/worker.grpc.pb.h"

namespace ridge::router {

using ExecuteWriter = grpc::ServerWriter<v1::ExecuteResponse>;

class FakeWorker final : public v1::Worker::Service, public v1::Inference::Service {
 public:
  using OnExecute =
      std::function<grpc::Status(grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*)>;

  // Ready, idle, serves "tiny"; answers Execute with `on_execute`.
  explicit FakeWorker(OnExecute on_execute);
  ~FakeWorker() override { Stop(); }

  const std::string& address() const { return address_; }

  // Changes what the open and the coming watches report.
  void Report(const v1::LoadReport& report);
  // From now on no watch reports anything.
  void FallSilent();

  void Stop();
  // Listens on the same port again.
  void Restart();

  int executed() const { return executed_.load(); }
  int unary_calls() const { return unary_calls_.load(); }
  // Status of the next unary calls.
  void FailUnaryCalls(const grpc::Status& status);

  grpc::Status Execute(grpc::ServerContext* context, const v1::ExecuteRequest* request,
                       ExecuteWriter* writer) override;
  grpc::Status WatchLoad(grpc::ServerContext* context, const v1::WatchLoadRequest* request,
                         grpc::ServerWriter<v1::LoadReport>* writer) override;
  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  grpc::Status GetModel(grpc::ServerContext* context, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override;

 private:
  void Listen(const std::string& address);

  const OnExecute on_execute_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<int> executed_{0};
  std::atomic<int> unary_calls_{0};

  absl::Mutex mutex_;
  v1::LoadReport report_ ABSL_GUARDED_BY(mutex_);
  int report_version_ ABSL_GUARDED_BY(mutex_) = 0;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status unary_status_ ABSL_GUARDED_BY(mutex_);
};

// A response with one token of this ordinal.
v1::ExecuteResponse TokenMessage(int ordinal);

// Writes `count` tokens.
grpc::Status WriteTokens(ExecuteWriter* writer, int count);

// Blocks until the call is cancelled, at most ten seconds; whether it was.
bool WaitForCancellation(grpc::ServerContext* context);

}  // namespace ridge::router
