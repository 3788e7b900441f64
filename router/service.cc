#include "router/service.h"

#include "common/proto_parse.h"
#include "common/status.h"
#include "router/generate_relay.h"
#include "router/unary_relay.h"

namespace ridge::router {

InferenceService::InferenceService(Upstreams* upstreams, RouterMetrics* metrics, const Clock* clock,
                                   OpenCalls* open_calls)
    : upstreams_(upstreams), metrics_(metrics), clock_(clock), open_calls_(open_calls) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request) {
  auto* relay = new GenerateRelay(upstreams_, metrics_, clock_, open_calls_, context);
  relay->Start(*request);
  return relay;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Relay<v1::TokenizeRequest>("/ridge.v1.Inference/Tokenize", context, *request, response);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Relay<v1::DetokenizeRequest>("/ridge.v1.Inference/Detokenize", context, *request, response);
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Relay<v1::GetModelRequest>("/ridge.v1.Inference/GetModel", context, *request, response);
}

template <class Request>
grpc::ServerUnaryReactor* InferenceService::Relay(const char* method, grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer& request,
                                                  grpc::ByteBuffer* response) {
  auto* relay = new UnaryRelay(upstreams_, context, method, response);
  Request parsed;
  const absl::Status status = ParseProto(request, &parsed);
  if (status.ok()) {
    relay->Start(request, parsed.model());
  } else {
    relay->Refuse(ToGrpc(status));
  }
  return relay;
}

}  // namespace ridge::router
