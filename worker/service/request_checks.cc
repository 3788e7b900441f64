#include "worker/service/request_checks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/service/request_controls.h"
#include "worker/service/request_input.h"

namespace ridge::worker {
namespace {

constexpr int kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int kMaxStopTokenIds = 1024;
constexpr size_t kMaxRequestIdBytes = 256;
constexpr int32_t kMaxPriority = 100;
constexpr int32_t kMaxChoices = 128;
constexpr int64_t kMaxPromptLogprobs = 1 << 18;

absl::Status CheckLogprobs(absl::string_view field, bool present, int32_t value) {
  if (!present || (value >= 0 && value <= kMaxTopLogprobs)) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value, " is not in 0 to ", kMaxTopLogprobs));
}

absl::Status CheckOutputs(const v1::GenerateRequest& request, const ServedModel& model) {
  if (request.has_n() && request.n() < 1)
    return InvalidField("n", absl::StrCat(request.n(), " is less than 1"));
  if (request.n() > kMaxChoices || request.n() > model.max_batch) {
    return InvalidField("n", absl::StrCat(request.n(), " is more than ",
                                          kMaxChoices <= model.max_batch
                                              ? absl::StrCat(kMaxChoices)
                                              : absl::StrCat("the server's --max_batch, ", model.max_batch)));
  }
  absl::Status status = CheckLogprobs("logprobs", request.has_logprobs(), request.logprobs());
  status.Update(CheckLogprobs("prompt_logprobs", request.has_prompt_logprobs(), request.prompt_logprobs()));
  if (status.ok() && request.has_prompt_logprobs() && !request.echo()) {
    return InvalidField("prompt_logprobs", "needs echo, which returns the prompt's tokens");
  }
  if (request.has_truncate_prompt_tokens() && request.truncate_prompt_tokens() < 1) {
    status.Update(InvalidField("truncate_prompt_tokens",
                               absl::StrCat(request.truncate_prompt_tokens(), " is less than 1")));
  }
  return status;
}

absl::Status CheckStops(const v1::GenerateRequest& request, const ServedModel& model) {
  if (request.stop_size() > kMaxStops) {
    return InvalidField("stop", absl::StrCat(request.stop_size(), " strings are more than ", kMaxStops));
  }
  for (int i = 0; i < request.stop_size(); ++i) {
    const std::string field = absl::StrCat("stop[", i, "]");
    if (request.stop(i).empty()) return InvalidField(field, "empty");
    if (request.stop(i).size() > kMaxStopBytes) {
      return InvalidField(field,
                          absl::StrCat(request.stop(i).size(), " bytes are more than ", kMaxStopBytes));
    }
  }
  if (request.stop_size() > 0 && model.tokenizer == nullptr) {
    return InvalidField("stop", "the model has no tokenizer, hence no text");
  }
  if (request.stop_token_ids_size() > kMaxStopTokenIds) {
    return InvalidField("stop_token_ids",
                        absl::StrCat(request.stop_token_ids_size(), " ids are more than ", kMaxStopTokenIds));
  }
  return CheckTokenIds("stop_token_ids", request.stop_token_ids(), model.config.vocab_size);
}

absl::Status CheckLimits(const v1::GenerateRequest& request) {
  if (request.has_max_tokens() && request.max_tokens() < 1) {
    return InvalidField("max_tokens", absl::StrCat(request.max_tokens(), " is less than 1"));
  }
  if (request.min_tokens() < 0) {
    return InvalidField("min_tokens", absl::StrCat(request.min_tokens(), " is negative"));
  }
  if (request.has_max_tokens() && request.min_tokens() > request.max_tokens()) {
    return InvalidField(
        "min_tokens", absl::StrCat(request.min_tokens(), " is more than max_tokens ", request.max_tokens()));
  }
  if (request.priority() < -kMaxPriority || request.priority() > kMaxPriority) {
    return InvalidField("priority",
                        absl::StrCat(request.priority(), " is not in ", -kMaxPriority, " to ", kMaxPriority));
  }
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return InvalidField("request_id", absl::StrCat("longer than ", kMaxRequestIdBytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRanges(const v1::GenerateRequest& request, const ServedModel& model) {
  absl::Status status = CheckOutputs(request, model);
  status.Update(CheckLimits(request));
  status.Update(CheckStops(request, model));
  return status;
}

absl::Status CheckDevice(const v1::GenerateRequest& request, const SamplingParams& sampling,
                         const ServedModel& model) {
  if (model.extended_sampling) return absl::OkStatus();
  const v1::SamplingParams& asked = request.sampling();
  const std::pair<const char*, bool> fields[] = {
      {"sampling.repetition_penalty", sampling.repetition_penalty != 1.0f},
      {"sampling.presence_penalty", sampling.presence_penalty != 0.0f},
      {"sampling.frequency_penalty", sampling.frequency_penalty != 0.0f},
      {"sampling.logit_bias", !asked.logit_bias().empty()},
      {"sampling.allowed_token_ids", !asked.allowed_token_ids().empty()},
      {"sampling.bad_token_ids", !asked.bad_token_ids().empty()},
      {"sampling.bad_words", !asked.bad_words().empty()},
      {"min_tokens", request.min_tokens() > 0},
      {"n", request.n() > 1},
      {"logprobs", request.logprobs() > 0},
      {"prompt_logprobs", request.has_prompt_logprobs()}};
  for (const auto& [field, is_asked] : fields) {
    if (is_asked) return InvalidField(field, "this server's device cannot do it");
  }
  return absl::OkStatus();
}

absl::Status CheckPromptLogprobs(const v1::GenerateRequest& request, size_t prompt_tokens) {
  if (!request.has_prompt_logprobs()) return absl::OkStatus();
  const int64_t count = static_cast<int64_t>(prompt_tokens) * (1 + request.prompt_logprobs());
  if (count <= kMaxPromptLogprobs) return absl::OkStatus();
  return InvalidField("prompt_logprobs",
                      absl::StrCat(request.prompt_logprobs(), " and the token's own for each of ",
                                   prompt_tokens, " tokens are more than ", kMaxPromptLogprobs));
}

}  // namespace ridge::worker
