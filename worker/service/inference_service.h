// ridge.v1.Inference on a worker.
//
// Requests arrive as raw bytes, so that text that is not UTF-8 is an error with the field's name. Threads:
// gRPC's.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "ridge/v1/inference.grpc.pb.h"
#include "worker/service/generate_call.h"

namespace ridge::worker {

// What GetModel tells beyond the ServedModel.
struct ModelDetails {
  std::string architecture;
  int64_t parameters = 0;
  std::string device;
  int64_t kv_capacity_tokens = 0;
};

using RawInferenceService = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithCallbackMethod_Detokenize<
        v1::Inference::WithCallbackMethod_GetModel<v1::Inference::Service>>>>;

class InferenceService : public RawInferenceService {
 public:
  InferenceService(const CallEnvironment& environment, ModelDetails details)
      : environment_(environment), details_(std::move(details)) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

 private:
  absl::Status TokenizeNow(const grpc::ByteBuffer& request, v1::TokenizeResponse* response) const;
  absl::Status DetokenizeNow(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) const;

  const CallEnvironment environment_;
  const ModelDetails details_;
};

}  // namespace ridge::worker
