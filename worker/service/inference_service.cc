#include "worker/service/inference_service.h"

#include "common/proto_parse.h"
#include "common/status.h"
#include "worker/service/unary_methods.h"

namespace ridge::worker {
namespace {

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Answer(const CallEnvironment& environment, grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                 absl::StatusOr<Response> (*method)(const Request&, const ServedModel&)) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // Request and response live until the reactor is finished.
  environment.tasks->Add([model = environment.model, reactor, context, request, response, method] {
    Request message;
    absl::Status status;
    if (context->IsCancelled()) status = absl::CancelledError("the client left");
    if (status.ok()) status = ParseProto(*request, &message);
    if (status.ok()) status = RefuseUnknownFields(message);
    if (status.ok()) {
      const absl::StatusOr<Response> answer = method(message, *model);
      status = answer.status();
      if (status.ok()) *response = SerializeProto(*answer);
    }
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request) {
  return GenerateCall::Start(environment_, GenerateCall::Envelope::kGenerate, context, *request);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Answer(environment_, context, request, response, &worker::Tokenize);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Answer(environment_, context, request, response, &worker::Detokenize);
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Answer(environment_, context, request, response, &worker::GetModel);
}

}  // namespace ridge::worker
