// One Generate call on its way through the router.
//
// Reads the worker's next message only after the client's write of the one before is done, so that a slow
// client slows its worker's stream and never grows the router's memory. Response headers go out with the
// first message.
//
// Threads: gRPC's callbacks of both sides, one mutex. Ownership: deletes itself when the call is done; at
// that time no call to a worker is open.
#pragma once

#include <memory>

#include "common/open_calls.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "ridge/v1/worker.pb.h"
#include "router/relay.h"
#include "router/router_metrics.h"
#include "router/upstreams.h"

namespace ridge::router {

class GenerateRelay final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                            public OpenCall,
                            private Relay {
 public:
  GenerateRelay(Upstreams* upstreams, RouterMetrics* metrics, const Clock* clock, OpenCalls* open_calls,
                grpc::CallbackServerContext* context);

  // Once, with the bytes of a GenerateRequest.
  void Start(const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { ClientLeft(); }
  void OnDone() override;

  void Cut(const absl::Status& status) override;

 private:
  class Call;

  std::unique_ptr<Attempt> NewAttempt(Lease lease) override;
  bool OutputBegan() const override { return output_began_; }
  void End(const grpc::Status& status) override;

  void OnMessage(const v1::ExecuteResponse& message);
  double SecondsSinceArrival() const;

  RouterMetrics* const metrics_;
  const Clock* const clock_;
  OpenCalls* const open_calls_;
  grpc::CallbackServerContext* const context_;
  const int64_t arrival_ns_;

  v1::ExecuteRequest request_;
  Call* call_ = nullptr;    // the open attempt, while its messages are relayed
  grpc::ByteBuffer write_;  // the message on its way to the client
  bool output_began_ = false;
};

}  // namespace ridge::router
