// ridge.v1.Inference on the router: checks that a request is well formed and relays it to a worker.
//
// Takes and gives raw bytes, so that text which is not UTF-8 is refused with its field's name. Everything
// else about a request is judged by the worker. Thread-safe.
#pragma once

#include "common/clock.h"
#include "common/open_calls.h"
#include "grpcpp/support/byte_buffer.h"
#include "ridge/v1/inference.grpc.pb.h"
#include "router/router_metrics.h"
#include "router/upstreams.h"

namespace ridge::router {

template <class Base>
using RawGenerate = v1::Inference::WithRawCallbackMethod_Generate<Base>;
template <class Base>
using RawTokenize = v1::Inference::WithRawCallbackMethod_Tokenize<Base>;
template <class Base>
using RawDetokenize = v1::Inference::WithRawCallbackMethod_Detokenize<Base>;
template <class Base>
using RawGetModel = v1::Inference::WithRawCallbackMethod_GetModel<Base>;

using RawInferenceService = RawGenerate<RawTokenize<RawDetokenize<RawGetModel<v1::Inference::Service>>>>;

class InferenceService final : public RawInferenceService {
 public:
  // All outlive the service.
  InferenceService(Upstreams* upstreams, RouterMetrics* metrics, const Clock* clock, OpenCalls* open_calls);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  // `Request` has a field `model`.
  template <class Request>
  grpc::ServerUnaryReactor* Relay(const char* method, grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& request, grpc::ByteBuffer* response);

  Upstreams* const upstreams_;
  RouterMetrics* const metrics_;
  const Clock* const clock_;
  OpenCalls* const open_calls_;
};

}  // namespace ridge::router
