#include "worker/service/unary_methods.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/utf8.h"
#include "worker/service/request_input.h"
#include "worker/service/request_sampling.h"

namespace ridge::worker {
namespace {

// Bounds the memory of one call: an answer is many times larger than its request.
constexpr size_t kMaxIds = 1 << 20;
// And its time.
constexpr int64_t kMaxTextBytes = int64_t{4} << 20;

absl::StatusOr<std::vector<TokenId>> EncodeInput(const v1::TokenizeRequest& request,
                                                 const ServedModel& model) {
  InputOptions options = InputOptionsOf(request);
  options.max_bytes = kMaxTextBytes;
  options.max_bytes_of = "one call";
  switch (request.input_case()) {
    case v1::TokenizeRequest::kPrompt:
      return EncodeText(request.prompt(), options, model);
    case v1::TokenizeRequest::kChat:
      return EncodeChat(request.chat(), options, model);
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "one of prompt, chat is required");
}

absl::Status CheckCount(absl::string_view field, size_t count) {
  if (count <= kMaxIds) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(count, " tokens are more than ", kMaxIds));
}

}  // namespace

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request, const ServedModel& model) {
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;
  const absl::StatusOr<std::vector<TokenId>> ids = EncodeInput(request, model);
  if (!ids.ok()) return ids.status();
  if (absl::Status status = CheckCount("input", ids->size()); !status.ok()) return status;
  v1::TokenizeResponse response;
  response.mutable_ids()->Add(ids->begin(), ids->end());
  for (TokenId id : *ids) response.add_pieces(std::string(model.tokenizer->TokenBytes(id)));
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ServedModel& model) {
  absl::Status status = CheckModelName(request.model(), model);
  if (status.ok() && model.tokenizer == nullptr) return InvalidField("ids", "the model has no tokenizer");
  status.Update(CheckCount("ids", request.ids_size()));
  status.Update(CheckTokenIds("ids", request.ids(), model.config.vocab_size));
  if (!status.ok()) return status;
  v1::DetokenizeResponse response;
  const std::vector<TokenId> ids(request.ids().begin(), request.ids().end());
  response.set_bytes(model.tokenizer->Decode(ids, request.skip_special_tokens()));
  response.set_text(ReplaceInvalidUtf8(response.bytes()));
  return response;
}

absl::StatusOr<v1::GetModelResponse> GetModel(const v1::GetModelRequest& request, const ServedModel& model) {
  if (absl::Status status = CheckModelName(request.model(), model); !status.ok()) return status;
  v1::GetModelResponse response;
  response.set_name(model.name);
  response.set_architecture(model.config.architecture);
  response.set_parameters(model.config.num_parameters());
  response.set_vocab_size(model.config.vocab_size);
  response.set_context_length(model.context_length);
  for (TokenId id : model.config.eos_token_ids) response.add_eos_token_ids(id);
  if (model.chat_template.has_value()) response.set_chat_template(std::string(model.chat_template->name()));
  response.set_has_tokenizer(model.tokenizer != nullptr);
  *response.mutable_default_sampling() = SamplingToProto(model.default_sampling);
  response.set_numerics_id(model.numerics_id);
  response.set_device(model.device);
  response.set_kv_capacity_tokens(model.kv_capacity_tokens);
  response.set_version(RIDGE_VERSION);
  return response;
}

}  // namespace ridge::worker
