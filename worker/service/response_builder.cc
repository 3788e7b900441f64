#include "worker/service/response_builder.h"

#include <algorithm>
#include <utility>

namespace ridge::worker {
namespace {

int64_t Microseconds(int64_t begin_ns, int64_t end_ns) {
  return (end_ns - begin_ns) / 1000;
}

v1::FinishReason ToMessage(FinishReason reason) {
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

ResponseBuilder::ResponseBuilder(const ResolvedCall& call, const ServedModel* model)
    : model_(model),
      return_text_(call.return_text),
      return_ids_(call.return_ids),
      logprobs_(call.sequence.sampling.logprobs),
      seed_(call.sequence.sampling.seed),
      request_id_(call.request_id),
      stops_(call.text.stops),
      stop_ids_(call.sequence.stop_ids),
      arrival_ns_(call.sequence.arrival_ns),
      prompt_tokens_(static_cast<int32_t>(call.sequence.prompt.size())) {
  if (model->tokenizer != nullptr) text_ = std::make_unique<TextStream>(model->tokenizer, call.text);
}

bool ResponseBuilder::AddToken(const TokenEvent& event) {
  if (tokens_ == 0) first_token_ns_ = event.time_ns;
  last_token_ns_ = event.time_ns;
  last_id_ = event.id;

  if (message_.choices_size() == 0) message_.add_choices();
  v1::Token& token = *message_.mutable_choices(0)->add_tokens();
  token.set_ordinal(tokens_++);
  token.set_time_offset_us(Microseconds(arrival_ns_, event.time_ns));
  if (logprobs_) token.set_logprob(event.logprob);
  if (return_ids_) token.set_id(event.id);
  if (text_ == nullptr) return true;

  if (return_ids_) {
    const absl::string_view bytes = model_->tokenizer->TokenBytes(event.id);
    token.set_bytes(bytes.data(), bytes.size());
  }
  const bool is_stop = std::find(stop_ids_.begin(), stop_ids_.end(), event.id) != stop_ids_.end();
  TextStream::Delta delta = text_->Push(event.id, event.is_last, is_stop);
  if (return_text_) token.set_text(std::move(delta.text));
  matched_stop_ = delta.matched_stop;
  return matched_stop_ < 0;
}

void ResponseBuilder::AddSummary(const Outcome& outcome) {
  v1::Summary& summary = *message_.mutable_summary();
  SetFinish(outcome, summary.add_choices());
  v1::Usage& usage = *summary.mutable_usage();
  usage.set_prompt_tokens(prompt_tokens_);
  usage.set_cached_tokens(outcome.cached_tokens);
  usage.set_completion_tokens(tokens_);
  v1::Timings& timings = *summary.mutable_timings();
  timings.set_queue_us(Microseconds(arrival_ns_, outcome.admitted_ns));
  timings.set_prefill_us(Microseconds(outcome.admitted_ns, first_token_ns_));
  timings.set_decode_us(Microseconds(first_token_ns_, last_token_ns_));
  timings.set_total_us(Microseconds(arrival_ns_, last_token_ns_));
  summary.set_seed(seed_);
  summary.set_model(model_->name);
  summary.set_numerics_id(model_->numerics_id);
  summary.set_request_id(request_id_);
}

void ResponseBuilder::SetFinish(const Outcome& outcome, v1::ChoiceSummary* choice) const {
  choice->set_finish_reason(ToMessage(outcome.reason));
  choice->set_completion_tokens(tokens_);
  if (outcome.reason != FinishReason::kStop) return;
  if (matched_stop_ >= 0) {
    choice->set_matched_stop(stops_[matched_stop_]);
  } else {
    choice->set_matched_stop_id(last_id_);
  }
}

v1::GenerateResponse ResponseBuilder::TakeMessage() {
  message_.set_sequence_number(next_sequence_number_++);
  return std::exchange(message_, {});
}

}  // namespace ridge::worker
