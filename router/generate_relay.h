// One Generate call on its way through the router.
//
// Reads the worker's next message only after the client's write of the one before is done, so that a slow
// client slows its worker's stream and never grows the router's memory. Response headers go out with the
// first message.
//
// A worker that is lost before any output is replaced by another one, unseen by the client; after output
// began the call ends with UNAVAILABLE. Every other outcome of the worker is the call's outcome.
//
// Threads: gRPC's callbacks of both sides, one mutex. Ownership: deletes itself when the call is done; at
// that time no call to a worker is open.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "ridge/v1/worker.pb.h"
#include "router/attempts.h"
#include "router/router_metrics.h"
#include "router/upstreams.h"

namespace ridge::router {

class GenerateRelay final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  GenerateRelay(Upstreams* upstreams, RouterMetrics* metrics, const Clock* clock,
                grpc::CallbackServerContext* context);
  ~GenerateRelay() override;

  // Once, with the bytes of a GenerateRequest.
  void Start(const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  class Call;

  // Opens the call at the next worker, or ends this one.
  void TryNextWorker();
  void OnMessage(const v1::ExecuteResponse& message);
  void OnCallDone(const grpc::Status& status);
  // The one outcome; `this` may be gone afterwards.
  void End(const grpc::Status& status);
  double SecondsSinceArrival() const;

  Upstreams* const upstreams_;
  RouterMetrics* const metrics_;
  const Clock* const clock_;
  grpc::CallbackServerContext* const context_;
  const int64_t arrival_ns_;

  v1::ExecuteRequest request_;
  std::unique_ptr<Attempts> attempts_;
  grpc::ByteBuffer write_;  // the message on its way to the client
  bool output_began_ = false;

  absl::Mutex mutex_;
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ridge::router
