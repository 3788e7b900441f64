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
  if (item.has_token) DeliverToken(stream, item);
  if (item.has_end && !stream.ended) DeliverEnd(stream, item.outcome);
}

void OutputThread::DeliverToken(OutputStream& stream, const OutputItem& item) {
  metrics_->OnToken(stream, item.token.time_ns);
  if (stream.tokens == 0) stream.first_token_ns = item.token.time_ns;
  stream.last_token_ns = item.token.time_ns;
  ++stream.tokens;
  if (stream.sink->OnToken(item.token)) return;

  // The outcome of a token that is also the last of its sequence is overruled: the stop string came first.
  Outcome outcome = item.outcome;
  outcome.status = absl::OkStatus();
  outcome.reason = FinishReason::kStop;
  DeliverEnd(stream, outcome);
  if (!item.has_end) on_stop_(stream.id);
}

void OutputThread::DeliverEnd(OutputStream& stream, const Outcome& outcome) {
  if (outcome.status.ok()) stream.sink->OnChoiceEnd(0, outcome);
  metrics_->OnEnd(stream, outcome, clock_->NowNs());
  stream.sink->OnEnd(outcome);
  stream.ended = true;
  stream.sink.reset();
}

}  // namespace ridge::worker
