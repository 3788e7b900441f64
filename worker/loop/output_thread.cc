#include "worker/loop/output_thread.h"

#include <utility>

namespace ridge::worker {

OutputThread::OutputThread(Clock* clock, EngineMetrics* metrics, std::function<void(SequenceId)> on_stop)
    : clock_(clock), metrics_(metrics), on_stop_(std::move(on_stop)), thread_([this] { Run(); }) {}

OutputThread::~OutputThread() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  thread_.join();
}

void OutputThread::Push(std::vector<OutputItem> items) {
  if (items.empty()) return;
  absl::MutexLock lock(&mutex_);
  if (items_.empty()) {
    items_ = std::move(items);
  } else {
    items_.insert(items_.end(), std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
  }
}

void OutputThread::Run() {
  for (;;) {
    std::vector<OutputItem> items;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &OutputThread::HasWork));
      if (items_.empty()) return;
      items.swap(items_);
    }
    for (OutputItem& item : items) Deliver(item);
  }
}

void OutputThread::Deliver(OutputItem& item) {
  OutputStream& stream = *item.stream;
  if (stream.ended) return;
  if (!item.prompt_logprobs.empty()) stream.sink->OnPromptLogprobs(std::move(item.prompt_logprobs));
  if (item.has_end && !item.outcome.status.ok()) return DeliverEnd(stream, item.outcome);
  if (!item.has_token || stream.choices[static_cast<size_t>(item.token.choice)].ended) return;
  DeliverToken(stream, item);
}

void OutputThread::DeliverToken(OutputStream& stream, const OutputItem& item) {
  const TokenEvent& token = item.token;
  OutputStream::Choice& choice = stream.choices[static_cast<size_t>(token.choice)];
  metrics_->OnToken(stream, token.choice, token.time_ns);
  if (stream.first_token_ns == 0) {
    stream.first_token_ns = token.time_ns;
    stream.admitted_ns = item.outcome.admitted_ns;
  }
  if (token.choice == 0) stream.cached_tokens = item.outcome.cached_tokens;
  stream.last_token_ns = choice.last_token_ns = token.time_ns;
  ++choice.tokens;
  const bool goes_on = stream.sink->OnToken(token);
  if (goes_on && !item.has_end) return;

  Outcome outcome = item.outcome;
  // The outcome of a token that is also the last of its sequence is overruled: the stop string came first.
  if (!goes_on) outcome.reason = FinishReason::kStop;
  EndChoice(stream, token.choice, outcome);
  if (!goes_on && !item.has_end) on_stop_(stream.id + static_cast<SequenceId>(token.choice));
}

void OutputThread::EndChoice(OutputStream& stream, int32_t choice, const Outcome& outcome) {
  stream.choices[static_cast<size_t>(choice)].ended = true;
  stream.sink->OnChoiceEnd(choice, outcome);
  if (--stream.open_choices > 0) return;
  Outcome all = outcome;
  all.admitted_ns = stream.admitted_ns;
  all.cached_tokens = stream.cached_tokens;
  DeliverEnd(stream, all);
}

void OutputThread::DeliverEnd(OutputStream& stream, const Outcome& outcome) {
  metrics_->OnEnd(stream, outcome, clock_->NowNs());
  stream.sink->OnEnd(outcome);
  stream.ended = true;
  stream.sink.reset();
}

}  // namespace ridge::worker
