#include "worker/service/inference_service.h"

#include "absl/strings/str_cat.h"
#include "common/proto_parse.h"
#include "common/status.h"
#include "common/utf8.h"

namespace ridge::worker {

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request) {
  return GenerateCall::Start(environment_, GenerateCall::Envelope::kGenerate, context, *request);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  environment_.tasks->Add([this, reactor, request, response] {
    v1::TokenizeResponse message;
    const absl::Status status = TokenizeNow(*request, &message);
    if (status.ok()) *response = SerializeProto(message);
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

absl::Status InferenceService::TokenizeNow(const grpc::ByteBuffer& bytes,
                                           v1::TokenizeResponse* response) const {
  v1::TokenizeRequest request;
  const ServedModel& model = *environment_.model;
  if (absl::Status status = ParseProto(bytes, &request); !status.ok()) return status;
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;
  absl::StatusOr<std::vector<TokenId>> ids = EncodeInput(request, model);
  if (!ids.ok()) return ids.status();
  for (TokenId id : *ids) {
    response->add_ids(id);
    const absl::string_view bytes_of_id = model.tokenizer->TokenBytes(id);
    response->add_pieces(bytes_of_id.data(), bytes_of_id.size());
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  environment_.tasks->Add(
      [this, reactor, request, response] { reactor->Finish(ToGrpc(DetokenizeNow(*request, response))); });
  return reactor;
}

absl::Status InferenceService::DetokenizeNow(const v1::DetokenizeRequest& request,
                                             v1::DetokenizeResponse* response) const {
  const ServedModel& model = *environment_.model;
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;
  if (model.tokenizer == nullptr) return absl::FailedPreconditionError("the model has no tokenizer");
  for (int i = 0; i < request.ids_size(); ++i) {
    if (request.ids(i) < 0 || request.ids(i) >= model.vocab_size) {
      return InvalidField(absl::StrCat("ids[", i, "]"),
                          absl::StrCat(request.ids(i), " is outside the vocabulary of ", model.vocab_size));
    }
  }
  const std::vector<TokenId> ids(request.ids().begin(), request.ids().end());
  response->set_bytes(model.tokenizer->Decode(ids, request.skip_special_tokens()));
  response->set_text(ReplaceInvalidUtf8(response->bytes()));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const ServedModel& model = *environment_.model;
  const absl::Status status = CheckModelName(request->model(), model);
  if (status.ok()) {
    response->set_name(model.name);
    response->set_architecture(details_.architecture);
    response->set_parameters(details_.parameters);
    response->set_vocab_size(model.vocab_size);
    response->set_context_length(model.context_length);
    response->mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
    if (model.chat != nullptr) response->set_chat_template(model.chat->name());
    response->set_has_tokenizer(model.tokenizer != nullptr);
    const SamplingParams defaults;
    v1::SamplingParams& sampling = *response->mutable_default_sampling();
    sampling.set_temperature(defaults.temperature);
    sampling.set_top_p(defaults.top_p);
    sampling.set_top_k(defaults.top_k);
    sampling.set_min_p(defaults.min_p);
    response->set_numerics_id(model.numerics_id);
    response->set_device(details_.device);
    response->set_kv_capacity_tokens(details_.kv_capacity_tokens);
    response->set_version(RIDGE_VERSION);
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace ridge::worker
