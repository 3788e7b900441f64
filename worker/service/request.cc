#include "worker/service/request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/service/request_checks.h"
#include "worker/service/request_controls.h"
#include "worker/service/request_input.h"
#include "worker/service/request_sampling.h"

namespace ridge::worker {
namespace {

// Of a text whose end is all that is kept.
constexpr int64_t kMaxTruncatedBytes = int64_t{4} << 20;

absl::Status ResolveReturns(const v1::GenerateRequest& request, const ServedModel& model,
                            ResolvedCall* call) {
  call->return_text = request.has_return_text() ? request.return_text() : model.tokenizer != nullptr;
  call->return_ids = request.has_return_ids() ? request.return_ids() : true;
  if (call->return_text && model.tokenizer == nullptr) {
    return InvalidField("return_text", "the model has no tokenizer");
  }
  if (!call->return_text && !call->return_ids) {
    return InvalidField("return_ids", request.has_return_text()
                                          ? "false together with return_text false leaves nothing to return"
                                          : "false leaves nothing to return: the model has no tokenizer");
  }
  return absl::OkStatus();
}

// The name of the input's field, for messages.
const char* InputField(const v1::GenerateRequest& request) {
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return "prompt";
    case v1::GenerateRequest::kPromptIds:
      return "prompt_ids";
    case v1::GenerateRequest::kChat:
      return "chat";
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return "input";
}

absl::StatusOr<std::vector<TokenId>> ResolveInput(const v1::GenerateRequest& request,
                                                  const ServedModel& model) {
  InputOptions options = InputOptionsOf(request);
  options.max_bytes = MostPromptBytes(model);
  options.max_bytes_of = "the context";
  if (request.has_truncate_prompt_tokens() && options.max_bytes < kMaxTruncatedBytes) {
    options.max_bytes = kMaxTruncatedBytes;
    options.max_bytes_of = "one call";
  }
  switch (request.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return EncodeText(request.prompt(), options, model);
    case v1::GenerateRequest::kPromptIds:
      return EncodeIds(request.prompt_ids(), options, model);
    case v1::GenerateRequest::kChat:
      return EncodeChat(request.chat(), options, model);
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "one of prompt, prompt_ids, chat is required");
}

// The limit is what the request asks for or what is left of the context, whichever is less.
absl::Status ResolveMaxTokens(const v1::GenerateRequest& request, const ServedModel& model,
                              ResolvedCall* call) {
  const int64_t prompt_tokens = static_cast<int64_t>(call->spec.prompt.size());
  const int64_t left = model.context_length - prompt_tokens;
  if (left < 1) {
    return InvalidField(
        InputField(request),
        absl::StrCat(prompt_tokens, " tokens leave no room in the context of ", model.context_length));
  }
  // Without a limit of its own a request asks for more than any context leaves.
  call->max_tokens_asked = request.has_max_tokens() ? request.max_tokens() : model.context_length;
  call->spec.max_tokens = static_cast<int32_t>(std::min<int64_t>(call->max_tokens_asked, left));
  call->spec.limit_reason = call->max_tokens_asked > left ? FinishReason::kContext : FinishReason::kLength;
  if (request.min_tokens() > left) {
    return InvalidField(
        "min_tokens", absl::StrCat(request.min_tokens(), " is more than the ", left, " that a prompt of ",
                                   prompt_tokens, " tokens leaves in the context of ", model.context_length));
  }
  return absl::OkStatus();
}

void ResolveStops(const v1::GenerateRequest& request, std::vector<TokenId> eos_ids, ResolvedCall* call) {
  call->stop_token_ids.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
  call->eos_ids = std::move(eos_ids);
  call->spec.stop_ids = call->eos_ids;
  call->spec.stop_ids.insert(call->spec.stop_ids.end(), call->stop_token_ids.begin(),
                             call->stop_token_ids.end());
  call->stops.assign(request.stop().begin(), request.stop().end());
  call->include_stop = request.include_stop_in_output();
}

// A row cannot report more tokens than there are.
void ResolveLogprobs(const v1::GenerateRequest& request, const ServedModel& model, SequenceSpec* spec) {
  spec->sampling.logprobs = request.has_logprobs();
  spec->sampling.top_logprobs = std::min(request.logprobs(), model.config.vocab_size);
  spec->prompt_logprobs = request.has_prompt_logprobs();
  spec->sampling.prompt_top_logprobs = std::min(request.prompt_logprobs(), model.config.vocab_size);
}

void KeepLast(int32_t count, std::vector<TokenId>* ids) {
  if (static_cast<size_t>(count) < ids->size()) ids->erase(ids->begin(), ids->end() - count);
}

absl::StatusOr<ResolvedCall> Resolve(const v1::GenerateRequest& request, std::vector<TokenId> eos_ids,
                                     const ServedModel& model) {
  ResolvedCall call;
  absl::Status status = CheckModelName(request.model(), model);
  status.Update(CheckRanges(request, model));
  status.Update(ResolveReturns(request, model, &call));
  if (!status.ok()) return status;
  absl::StatusOr<SamplingParams> sampling = ResolveSampling(request.sampling(), model);
  if (!sampling.ok()) return sampling.status();
  if (status = CheckDevice(request, *sampling, model); !status.ok()) return status;
  call.spec.sampling = *sampling;
  ResolveStops(request, std::move(eos_ids), &call);
  if (status = ResolveControls(request, model, &call); !status.ok()) return status;
  // Last, since it takes time.
  absl::StatusOr<std::vector<TokenId>> prompt = ResolveInput(request, model);
  if (!prompt.ok()) return prompt.status();
  call.spec.prompt = *std::move(prompt);
  if (request.has_truncate_prompt_tokens()) KeepLast(request.truncate_prompt_tokens(), &call.spec.prompt);
  status = ResolveMaxTokens(request, model, &call);
  status.Update(CheckPromptLogprobs(request, call.spec.prompt.size()));
  if (!status.ok()) return status;

  ResolveLogprobs(request, model, &call.spec);
  call.echo = request.echo();
  call.num_choices = request.has_n() ? request.n() : 1;
  call.spec.priority = request.priority();
  call.client_request_id = request.request_id();
  call.skip_special = request.has_skip_special_tokens() ? request.skip_special_tokens() : true;
  return call;
}

// Nothing that decides the output may be left to a default, which another worker may have set otherwise.
absl::Status CheckComplete(const v1::GenerateRequest& request) {
  const v1::SamplingParams& sampling = request.sampling();
  const std::pair<const char*, bool> fields[] = {
      {"prompt_ids", request.has_prompt_ids()},
      {"max_tokens", request.has_max_tokens()},
      {"sampling.temperature", sampling.has_temperature()},
      {"sampling.top_p", sampling.has_top_p()},
      {"sampling.top_k", sampling.has_top_k()},
      {"sampling.min_p", sampling.has_min_p()},
      {"sampling.repetition_penalty", sampling.has_repetition_penalty()},
      {"sampling.presence_penalty", sampling.has_presence_penalty()},
      {"sampling.frequency_penalty", sampling.has_frequency_penalty()},
      {"sampling.seed", sampling.has_seed()}};
  for (const auto& [field, present] : fields) {
    if (!present) return InvalidField(absl::StrCat("resolved.request.", field), "required");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ResolvedCall> Resolve(const v1::GenerateRequest& request, const ServedModel& model) {
  return Resolve(request, request.ignore_eos() ? std::vector<TokenId>() : model.config.eos_token_ids, model);
}

absl::StatusOr<ResolvedCall> Resolve(const v1::ResolvedRequest& resolved, const ServedModel& model) {
  if (resolved.numerics_id() != model.numerics_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("resolved.numerics_id: ", Quoted(resolved.numerics_id()), " is not this worker's ",
                     model.numerics_id));
  }
  absl::Status status =
      CheckTokenIds("resolved.eos_token_ids", resolved.eos_token_ids(), model.config.vocab_size);
  if (!status.ok()) return status;
  if (status = CheckComplete(resolved.request()); !status.ok()) return status;
  return Resolve(resolved.request(), {resolved.eos_token_ids().begin(), resolved.eos_token_ids().end()},
                 model);
}

v1::ResolvedRequest ToProto(const ResolvedCall& call, const ServedModel& model) {
  v1::ResolvedRequest resolved;
  v1::GenerateRequest& request = *resolved.mutable_request();
  request.set_model(model.name);
  request.mutable_prompt_ids()->mutable_ids()->Add(call.spec.prompt.begin(), call.spec.prompt.end());
  *request.mutable_sampling() = SamplingToProto(call.spec.sampling);
  request.mutable_sampling()->set_seed(call.spec.sampling.seed);
  request.set_max_tokens(call.max_tokens_asked);
  ControlsToProto(call, &request);
  for (const std::string& stop : call.stops) request.add_stop(stop);
  request.mutable_stop_token_ids()->Add(call.stop_token_ids.begin(), call.stop_token_ids.end());
  request.set_include_stop_in_output(call.include_stop);
  request.set_ignore_eos(call.eos_ids.empty());
  request.set_n(call.num_choices);
  if (call.spec.sampling.logprobs) request.set_logprobs(call.spec.sampling.top_logprobs);
  if (call.spec.prompt_logprobs) request.set_prompt_logprobs(call.spec.sampling.prompt_top_logprobs);
  request.set_echo(call.echo);
  request.set_skip_special_tokens(call.skip_special);
  request.set_return_text(call.return_text);
  request.set_return_ids(call.return_ids);
  request.set_priority(call.spec.priority);
  request.set_request_id(call.client_request_id);
  resolved.mutable_eos_token_ids()->Add(call.eos_ids.begin(), call.eos_ids.end());
  resolved.set_numerics_id(model.numerics_id);
  return resolved;
}

}  // namespace ridge::worker
