#include "worker/service/response_stream.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ridge::worker {
namespace {

// Keeps a message of a client that reads slowly within any limit on its size.
constexpr int kMaxTokensPerMessage = 64;

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
      return_text_(call.return_text),
      return_ids_(call.return_ids),
      logprobs_(call.spec.sampling.logprobs),
      seed_(call.spec.sampling.seed),
      prompt_tokens_(static_cast<int32_t>(call.spec.prompt.size())),
      arrival_ns_(arrival_ns) {
  if (model->tokenizer == nullptr || (!call.return_text && call.stops.empty())) return;
  text_.emplace(
      model->tokenizer.get(),
      TextOptions{.stops = call.stops, .include_stop = call.include_stop, .skip_special = call.skip_special});
}

bool ResponseStream::AddToken(const TokenEvent& event) {
  RIDGE_CHECK(matched_stop_ < 0 && !summary_.has_value());
  const bool is_stop_token =
      event.is_last && std::find(stop_ids_.begin(), stop_ids_.end(), event.id) != stop_ids_.end();
  v1::Token token;
  token.set_ordinal(generated_++);
  token.set_time_offset_us(Microseconds(arrival_ns_, event.time_ns));
  if (logprobs_) token.set_logprob(event.logprob);
  if (return_ids_) {
    token.set_id(event.id);
    if (model_->tokenizer != nullptr) token.set_bytes(std::string(model_->tokenizer->TokenBytes(event.id)));
  }
  if (text_.has_value()) {
    TextStream::Delta delta = text_->Push(event.id, event.is_last, is_stop_token);
    matched_stop_ = delta.matched_stop;
    if (return_text_) token.set_text(std::move(delta.text));
  }
  if (is_stop_token) stop_id_ = event.id;
  if (generated_ == 1) first_token_ns_ = event.time_ns;
  last_token_ns_ = event.time_ns;
  tokens_.push_back(std::move(token));
  return matched_stop_ < 0;
}

void ResponseStream::End(const Outcome& outcome) {
  RIDGE_CHECK(outcome.status.ok() && !summary_.has_value());
  v1::Summary& summary = summary_.emplace();
  *summary.add_choices() = SummariseChoice(outcome);
  summary.mutable_usage()->set_prompt_tokens(prompt_tokens_);
  summary.mutable_usage()->set_cached_tokens(outcome.cached_tokens);
  summary.mutable_usage()->set_completion_tokens(generated_);
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

v1::ChoiceSummary ResponseStream::SummariseChoice(const Outcome& outcome) const {
  v1::ChoiceSummary choice;
  choice.set_choice(0);
  choice.set_finish_reason(ToProto(outcome.reason));
  choice.set_completion_tokens(generated_);
  if (outcome.reason != FinishReason::kStop) return choice;
  if (matched_stop_ >= 0) {
    choice.set_matched_stop(stops_[matched_stop_]);
  } else if (stop_id_.has_value()) {
    choice.set_matched_stop_id(*stop_id_);
  }
  return choice;
}

v1::GenerateResponse ResponseStream::TakeMessage() {
  RIDGE_CHECK(HasMessage());
  v1::GenerateResponse message;
  message.set_sequence_number(messages_++);
  if (!tokens_.empty()) {
    v1::ChoiceTokens& choice = *message.add_choices();
    for (int i = 0; i < kMaxTokensPerMessage && !tokens_.empty(); ++i) {
      *choice.add_tokens() = std::move(tokens_.front());
      tokens_.pop_front();
    }
  }
  if (tokens_.empty() && summary_.has_value()) {
    *message.mutable_summary() = *std::move(summary_);
    summary_.reset();
  }
  return message;
}

}  // namespace ridge::worker
