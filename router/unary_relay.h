// One unary call on its way through the router, as raw bytes. A worker that is lost is replaced by another
// one: the relayed methods only read.
//
// Threads and ownership as GenerateRelay's.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "router/attempts.h"
#include "router/upstreams.h"

namespace ridge::router {

class UnaryRelay final : public grpc::ServerUnaryReactor {
 public:
  // `method` is the full name ("/ridge.v1.Inference/Tokenize"). `response` is written before the call ends.
  UnaryRelay(Upstreams* upstreams, grpc::CallbackServerContext* context, std::string method,
             grpc::ByteBuffer* response);

  // Once: relays to a worker that serves `model`.
  void Start(const grpc::ByteBuffer& request, const std::string& model);
  // Instead of Start, for a request that is refused here.
  void Refuse(const grpc::Status& status) { Finish(status); }

  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  struct Call {
    explicit Call(Lease l) : lease(std::move(l)) {}
    Lease lease;
    grpc::ClientContext context;
  };

  void TryNextWorker();
  void OnCallDone(const grpc::Status& status);

  Upstreams* const upstreams_;
  grpc::CallbackServerContext* const context_;
  const std::string method_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer* const response_;
  std::unique_ptr<Attempts> attempts_;

  absl::Mutex mutex_;
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ridge::router
