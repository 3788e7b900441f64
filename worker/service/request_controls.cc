#include "worker/service/request_controls.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/service/request_input.h"
#include "worker/text/bad_words.h"

namespace ridge::worker {
namespace {

constexpr float kMaxBias = 100.0f;
constexpr int kMaxBadWords = 64;
constexpr size_t kMaxBadWordBytes = 256;

// Bad words as the engine asks for them.
class BadWordBans final : public NextTokenBans {
 public:
  explicit BadWordBans(BadWords words) : words_(std::move(words)) {}

  const BadWords& words() const { return words_; }
  int32_t Advance(int32_t state, TokenId token) const override { return words_.Advance(state, token); }
  std::vector<TokenId> Banned(int32_t state) const override { return words_.CompletedBy(state); }

 private:
  const BadWords words_;
};

void SortAndDeduplicate(std::vector<TokenId>* ids) {
  std::sort(ids->begin(), ids->end());
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
}

std::vector<TokenId> Distinct(const google::protobuf::RepeatedField<int32_t>& ids) {
  std::vector<TokenId> distinct(ids.begin(), ids.end());
  SortAndDeduplicate(&distinct);
  return distinct;
}

absl::Status ResolveBias(const v1::SamplingParams& sampling, const ServedModel& model,
                         TokenControls* controls) {
  if (sampling.logit_bias_size() > kMaxTokenBiases) {
    return InvalidField("sampling.logit_bias",
                        absl::StrCat(sampling.logit_bias_size(), " entries are more than ", kMaxTokenBiases));
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    const std::string field = absl::StrCat("sampling.logit_bias[", id, "]");
    if (id < 0 || id >= model.config.vocab_size) {
      return InvalidField(field, absl::StrCat("outside the vocabulary of ", model.config.vocab_size));
    }
    if (!(bias >= -kMaxBias && bias <= kMaxBias)) {
      return InvalidField(field, absl::StrCat(bias, " is not in [", -kMaxBias, ", ", kMaxBias, "]"));
    }
    controls->bias.push_back({id, bias});
  }
  std::sort(controls->bias.begin(), controls->bias.end(),
            [](const TokenBias& a, const TokenBias& b) { return a.id < b.id; });
  return absl::OkStatus();
}

absl::Status CheckBadWords(const v1::SamplingParams& sampling, const ServedModel& model) {
  if (sampling.bad_words_size() > kMaxBadWords) {
    return InvalidField("sampling.bad_words",
                        absl::StrCat(sampling.bad_words_size(), " words are more than ", kMaxBadWords));
  }
  for (int i = 0; i < sampling.bad_words_size(); ++i) {
    const std::string field = absl::StrCat("sampling.bad_words[", i, "]");
    if (sampling.bad_words(i).empty()) return InvalidField(field, "empty");
    if (sampling.bad_words(i).size() > kMaxBadWordBytes) {
      return InvalidField(
          field, absl::StrCat(sampling.bad_words(i).size(), " bytes are more than ", kMaxBadWordBytes));
    }
  }
  if (sampling.bad_words_size() > 0 && model.tokenizer == nullptr) {
    return InvalidField("sampling.bad_words", "the model has no tokenizer, hence no text");
  }
  return absl::OkStatus();
}

// Whatever was generated, something must be left to generate.
absl::Status CheckSomethingIsLeft(const TokenControls& controls, const BadWords* words,
                                  const ServedModel& model) {
  std::vector<bool> left(static_cast<size_t>(model.config.vocab_size), controls.allowed_ids.empty());
  const auto set = [&](const std::vector<TokenId>& ids, bool value) {
    for (TokenId id : ids) left[static_cast<size_t>(id)] = value;
  };
  set(controls.allowed_ids, true);
  set(controls.banned_ids, false);
  if (controls.min_tokens > 0) set(controls.late_ids, false);
  if (words != nullptr) set(words->EverCompleting(), false);
  if (std::find(left.begin(), left.end(), true) != left.end()) return absl::OkStatus();
  const char* field = !controls.allowed_ids.empty() ? "sampling.allowed_token_ids"
                      : words != nullptr            ? "sampling.bad_words"
                                                    : "sampling.bad_token_ids";
  return InvalidField(field,
                      "together with bad tokens, bad words and min_tokens it may leave nothing to generate");
}

}  // namespace

absl::Status ResolveControls(const v1::GenerateRequest& request, const ServedModel& model,
                             ResolvedCall* call) {
  const v1::SamplingParams& sampling = request.sampling();
  TokenControls& controls = call->spec.controls;
  const int32_t vocab_size = model.config.vocab_size;
  absl::Status status = ResolveBias(sampling, model, &controls);
  status.Update(CheckTokenIds("sampling.allowed_token_ids", sampling.allowed_token_ids(), vocab_size));
  status.Update(CheckTokenIds("sampling.bad_token_ids", sampling.bad_token_ids(), vocab_size));
  status.Update(CheckBadWords(sampling, model));
  if (!status.ok()) return status;

  controls.allowed_ids = Distinct(sampling.allowed_token_ids());
  controls.banned_ids = call->bad_token_ids = Distinct(sampling.bad_token_ids());
  controls.min_tokens = request.min_tokens();
  if (controls.min_tokens > 0) {
    controls.late_ids = call->spec.stop_ids;
    SortAndDeduplicate(&controls.late_ids);
  }
  const BadWords* words = nullptr;
  if (sampling.bad_words_size() > 0) {
    call->bad_words.assign(sampling.bad_words().begin(), sampling.bad_words().end());
    auto bans = std::make_shared<BadWordBans>(
        BadWords(model.tokenizer.get(), model.token_index.get(), call->bad_words));
    words = &bans->words();
    controls.banned_ids.insert(controls.banned_ids.end(), words->always().begin(), words->always().end());
    SortAndDeduplicate(&controls.banned_ids);
    call->spec.bans = std::move(bans);
  }
  if (controls.empty() && words == nullptr) return absl::OkStatus();
  return CheckSomethingIsLeft(controls, words, model);
}

void ControlsToProto(const ResolvedCall& call, v1::GenerateRequest* request) {
  v1::SamplingParams& sampling = *request->mutable_sampling();
  const TokenControls& controls = call.spec.controls;
  for (const TokenBias& entry : controls.bias) (*sampling.mutable_logit_bias())[entry.id] = entry.bias;
  sampling.mutable_allowed_token_ids()->Add(controls.allowed_ids.begin(), controls.allowed_ids.end());
  sampling.mutable_bad_token_ids()->Add(call.bad_token_ids.begin(), call.bad_token_ids.end());
  for (const std::string& word : call.bad_words) sampling.add_bad_words(word);
  request->set_min_tokens(controls.min_tokens);
}

}  // namespace ridge::worker
