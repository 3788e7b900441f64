#include "worker/service/response_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/check.h"

namespace ridge::worker {
namespace {

// Both keep a message of a client that reads slowly within any limit on its size; the first token beyond them
// ends it.
constexpr int kMaxTokensPerMessage = 64;
constexpr size_t kMaxMessageBytes = 16 << 10;

int64_t Microseconds(int64_t begin_ns, int64_t end_ns) {
  return (end_ns - begin_ns) / 1000;
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kContext:
      return v1::FINISH_REASON_CONTEXT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

ResponseStream::ResponseStream(const ResolvedCall& call, const ServedModel* model, int64_t arrival_ns)
    : model_(model),
      client_request_id_(call.client_request_id),
      stop_ids_(call.spec.stop_ids),
      stops_(call.stops),
      skip_special_(call.skip_special),
      return_text_(call.return_text),
      return_ids_(call.return_ids),
      logprobs_(call.spec.sampling.logprobs),
      seed_(call.spec.sampling.seed),
      prompt_tokens_(static_cast<int32_t>(call.spec.prompt.size())),
      arrival_ns_(arrival_ns),
      choices_(static_cast<size_t>(call.num_choices)) {
  if (call.echo) prompt_ = call.spec.prompt;
  if (model->tokenizer == nullptr || (!call.return_text && call.stops.empty())) return;
  const TextOptions options{.stops = call.stops,
                            .include_stop = call.include_stop,
                            .skip_special = call.skip_special,
                            .min_tokens = call.spec.controls.min_tokens};
  for (Choice& choice : choices_) choice.text.emplace(model->tokenizer.get(), options);
}

void ResponseStream::AddPromptLogprobs(std::vector<PromptLogprob> logprobs) {
  prompt_logprobs_.insert(prompt_logprobs_.end(), std::make_move_iterator(logprobs.begin()),
                          std::make_move_iterator(logprobs.end()));
}

void ResponseStream::AddPromptTokens() {
  std::optional<TextStream> text;
  if (return_text_) text.emplace(model_->tokenizer.get(), TextOptions{.skip_special = skip_special_});
  for (size_t i = 0; i < prompt_.size(); ++i) {
    v1::Token token;
    token.set_ordinal(static_cast<int32_t>(i) - prompt_tokens_);
    if (i > 0 && i <= prompt_logprobs_.size())
      SetLogprob(prompt_logprobs_[i - 1].logprob, prompt_logprobs_[i - 1].top, &token);
    if (return_ids_) SetIdAndBytes(prompt_[i], &token);
    const bool is_last = i + 1 == prompt_.size();
    if (text.has_value()) token.set_text(text->Push(prompt_[i], is_last, /*is_stop_token=*/false).text);
    tokens_.push_back({0, std::move(token)});
  }
  prompt_.clear();
  prompt_logprobs_.clear();
}

bool ResponseStream::AddToken(const TokenEvent& event) {
  Choice& choice = choices_[static_cast<size_t>(event.choice)];
  RIDGE_CHECK(choice.matched_stop < 0 && !summary_.has_value());
  if (event.choice == 0 && !prompt_.empty()) AddPromptTokens();
  const bool is_stop_token =
      event.is_last && std::find(stop_ids_.begin(), stop_ids_.end(), event.id) != stop_ids_.end();
  v1::Token token;
  token.set_ordinal(choice.generated++);
  token.set_time_offset_us(Microseconds(arrival_ns_, event.time_ns));
  if (logprobs_) SetLogprob(event.logprob, event.top, &token);
  if (return_ids_) SetIdAndBytes(event.id, &token);
  if (choice.text.has_value()) {
    TextStream::Delta delta = choice.text->Push(event.id, event.is_last, is_stop_token);
    choice.matched_stop = delta.matched_stop;
    if (return_text_) token.set_text(std::move(delta.text));
  }
  if (is_stop_token) choice.stop_id = event.id;
  if (first_token_ns_ == 0) first_token_ns_ = event.time_ns;
  last_token_ns_ = event.time_ns;
  tokens_.push_back({event.choice, std::move(token)});
  return choice.matched_stop < 0;
}

void ResponseStream::SetIdAndBytes(TokenId id, v1::Token* token) const {
  token->set_id(id);
  if (model_->tokenizer != nullptr) token->set_bytes(std::string(model_->tokenizer->TokenBytes(id)));
}

void ResponseStream::SetLogprob(float logprob, const std::vector<TokenLogprob>& top, v1::Token* token) const {
  token->set_logprob(logprob);
  for (const TokenLogprob& entry : top) {
    v1::TopLogprob& added = *token->add_top_logprobs();
    added.set_id(entry.id);
    if (model_->tokenizer != nullptr) added.set_bytes(std::string(model_->tokenizer->TokenBytes(entry.id)));
    added.set_logprob(entry.logprob);
  }
}

void ResponseStream::EndChoice(int32_t choice, FinishReason reason) {
  choices_[static_cast<size_t>(choice)].reason = reason;
}

void ResponseStream::End(const Outcome& outcome) {
  RIDGE_CHECK(outcome.status.ok() && !summary_.has_value());
  v1::Summary& summary = summary_.emplace();
  int32_t generated = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(choices_.size()); ++i) {
    *summary.add_choices() = SummariseChoice(i);
    generated += choices_[static_cast<size_t>(i)].generated;
  }
  summary.mutable_usage()->set_prompt_tokens(prompt_tokens_);
  summary.mutable_usage()->set_cached_tokens(outcome.cached_tokens);
  summary.mutable_usage()->set_completion_tokens(generated);
  v1::Timings& timings = *summary.mutable_timings();
  timings.set_queue_us(Microseconds(arrival_ns_, outcome.admitted_ns));
  timings.set_prefill_us(Microseconds(outcome.admitted_ns, first_token_ns_));
  timings.set_decode_us(Microseconds(first_token_ns_, last_token_ns_));
  timings.set_total_us(Microseconds(arrival_ns_, last_token_ns_));
  summary.set_seed(seed_);
  summary.set_model(model_->name);
  summary.set_numerics_id(model_->numerics_id);
  summary.set_request_id(client_request_id_);
}

v1::ChoiceSummary ResponseStream::SummariseChoice(int32_t index) const {
  const Choice& choice = choices_[static_cast<size_t>(index)];
  v1::ChoiceSummary summary;
  summary.set_choice(index);
  summary.set_finish_reason(ToProto(choice.reason));
  summary.set_completion_tokens(choice.generated);
  if (choice.reason != FinishReason::kStop) return summary;
  if (choice.matched_stop >= 0) {
    summary.set_matched_stop(stops_[static_cast<size_t>(choice.matched_stop)]);
  } else if (choice.stop_id.has_value()) {
    summary.set_matched_stop_id(*choice.stop_id);
  }
  return summary;
}

v1::GenerateResponse ResponseStream::TakeMessage() {
  RIDGE_CHECK(HasMessage());
  v1::GenerateResponse message;
  message.set_sequence_number(messages_++);
  v1::ChoiceTokens* choice = nullptr;
  size_t bytes = 0;
  for (int i = 0; i < kMaxTokensPerMessage && bytes < kMaxMessageBytes && !tokens_.empty(); ++i) {
    WaitingToken& next = tokens_.front();
    if (choice == nullptr || choice->choice() != next.choice) {
      choice = message.add_choices();
      choice->set_choice(next.choice);
    }
    bytes += next.token.ByteSizeLong();
    *choice->add_tokens() = std::move(next.token);
    tokens_.pop_front();
  }
  if (tokens_.empty() && summary_.has_value()) {
    *message.mutable_summary() = *std::move(summary_);
    summary_.reset();
  }
  return message;
}

}  // namespace ridge::worker
