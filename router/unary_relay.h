// One unary call on its way through the router, as raw bytes. The relayed methods only read, so that one can
// begin anew elsewhere.
//
// Threads and ownership as GenerateRelay's.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "router/relay.h"
#include "router/upstreams.h"

namespace ridge::router {

class UnaryRelay final : public grpc::ServerUnaryReactor, private Relay {
 public:
  // `method` is the full name ("/ridge.v1.Inference/Tokenize"). `response` is written before the call ends.
  UnaryRelay(Upstreams* upstreams, grpc::CallbackServerContext* context, std::string method,
             grpc::ByteBuffer* response);

  // Once: relays to a worker that serves `model`.
  void Start(const grpc::ByteBuffer& request, const std::string& model);
  // Instead of Start, for a request that is refused here.
  void Refuse(const grpc::Status& status) { Finish(status); }

  void OnCancel() override { ClientLeft(); }
  void OnDone() override { delete this; }

 private:
  class Call;

  std::unique_ptr<Attempt> NewAttempt(Lease lease) override;
  bool OutputBegan() const override { return false; }
  void End(const grpc::Status& status) override { Finish(status); }

  const std::string method_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer* const response_;
};

}  // namespace ridge::router
