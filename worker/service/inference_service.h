// ridge.v1.Inference on a worker.
//
// Requests arrive as raw bytes, so that text which is not UTF-8 is refused with its field's name. Requests
// are parsed and answered in the task pool. Thread-safe.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "ridge/v1/inference.grpc.pb.h"
#include "worker/service/generate_call.h"

namespace ridge::worker {

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
  explicit InferenceService(const CallEnvironment& environment) : environment_(environment) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  const CallEnvironment environment_;
};

}  // namespace ridge::worker
