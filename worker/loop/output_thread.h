// Hands generated tokens to their sinks, off the engine thread: text and network work never delays a step.
//
// Threads: Push may be called from any thread (the engine's, in practice); sinks are called from the thread
// that this class owns. The destructor delivers what was pushed, then joins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "worker/decision/sequence.h"
#include "worker/loop/engine_metrics.h"

namespace ridge::worker {

// Log-probabilities of the prompt, a token, an end, or a token and an end (the last token and the end that
// follows it).
struct OutputItem {
  std::shared_ptr<OutputStream> stream;
  std::vector<PromptLogprob> prompt_logprobs = {};
  bool has_token = false;
  TokenEvent token{};
  bool has_end = false;
  Outcome outcome;
};

class OutputThread {
 public:
  // `on_stop` is called on the output thread where a stop string ended a sequence that the engine still runs.
  OutputThread(Clock* clock, EngineMetrics* metrics, std::function<void(SequenceId)> on_stop);
  ~OutputThread();

  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  void Push(std::vector<OutputItem> items);

 private:
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !items_.empty(); }
  void Deliver(OutputItem& item);
  void DeliverToken(OutputStream& stream, const OutputItem& item);
  void EndChoice(OutputStream& stream, int32_t choice, const Outcome& outcome);
  void DeliverEnd(OutputStream& stream, const Outcome& outcome);

  Clock* const clock_;
  EngineMetrics* const metrics_;
  const std::function<void(SequenceId)> on_stop_;
  absl::Mutex mutex_;
  std::vector<OutputItem> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ridge::worker
