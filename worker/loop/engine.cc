#include "worker/loop/engine.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/logging.h"
#include "common/status.h"
#include "worker/loop/engine_core.h"
#include "worker/loop/output_thread.h"

namespace ridge::worker {
namespace {

constexpr int64_t kCheckIntervalNs = 1'000'000'000;

struct Cancellation {
  SequenceId id;
  absl::Status why;
};

struct Stopped {
  SequenceId id;
};

// The sequences of a request.
using Choices = std::vector<std::unique_ptr<Sequence>>;

// Requests that the engine thread has not seen yet.
struct Arrivals {
  int32_t choices = 0;
  int64_t tokens = 0;  // of prompts
};

using Message = std::variant<Choices, Cancellation, Stopped>;

// One a choice. They share what was asked: prompts are long.
Choices ChoicesOf(SequenceSpec spec, const std::shared_ptr<OutputStream>& output, int32_t num_choices) {
  const auto shared = std::make_shared<SequenceSpec>(std::move(spec));
  Choices choices;
  for (int32_t i = 0; i < num_choices; ++i) {
    auto sequence = std::make_unique<Sequence>(shared, i);
    sequence->output = output;
    choices.push_back(std::move(sequence));
  }
  return choices;
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineConfig& config, Backend* backend, Clock* clock, EngineMetrics* metrics)
      : config_(config),
        clock_(clock),
        load_{.free_blocks = config.num_blocks},
        output_(clock, metrics, [this](SequenceId id) { Send(Stopped{id}); }),
        core_(config, backend, clock, metrics,
              [this](std::vector<OutputItem> items) { output_.Push(std::move(items)); }),
        thread_([this] { Run(); }) {}

  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  const EngineConfig& config() const { return config_; }

  SequenceId Submit(SequenceSpec spec, std::shared_ptr<TokenSink> sink, int32_t num_choices) {
    auto output = std::make_shared<OutputStream>();
    output->sink = std::move(sink);
    output->arrival_ns = spec.arrival_ns;
    output->prompt_tokens = static_cast<int32_t>(spec.prompt.size());
    output->choices.resize(static_cast<size_t>(num_choices));
    output->open_choices = num_choices;
    Choices choices = ChoicesOf(std::move(spec), output, num_choices);

    absl::MutexLock lock(&mutex_);
    const SequenceId id = output->id = next_id_;
    for (const std::unique_ptr<Sequence>& choice : choices) choice->id = next_id_++;
    if (absl::Status refusal = Refusal(choices); !refusal.ok()) {
      OutputItem refused;
      refused.stream = output;
      refused.has_end = true;
      refused.outcome.status = std::move(refusal);
      std::vector<OutputItem> items;
      items.push_back(std::move(refused));
      output_.Push(std::move(items));
    } else {
      CountArrival(choices);
      Post(std::move(choices));
    }
    return id;
  }

  void Send(Message message) {
    absl::MutexLock lock(&mutex_);
    Post(std::move(message));
  }

  void Drain() {
    absl::MutexLock lock(&mutex_);
    load_.draining = true;
  }

  EngineLoad Load() const {
    absl::MutexLock lock(&mutex_);
    EngineLoad load = load_;
    load.queued += arriving_.choices;
    load.queued_tokens += arriving_.tokens;
    load.queue_room = FreePlaces() - starting_.choices;
    if (load.queued == 0 || load.queued_tokens < config_.max_queued_tokens)
      load.queue_room += std::max(config_.max_queued_requests - load.queued, 0);
    load.queued += starting_.choices;
    load.queued_tokens += starting_.tokens;
    return load;
  }

  int64_t StalledNs() const {
    absl::MutexLock lock(&mutex_);
    return working_ || !inbox_.empty() ? clock_->NowNs() - progress_ns_ : 0;
  }

 private:
  // How many of those in the inbox the next plan can give a slot: none where the last one left others
  // waiting, for a slot or for memory.
  int32_t FreePlaces() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (load_.queued > 0) return 0;
    const AdmissionPolicy admission = config_.policy.admission;
    if (admission == AdmissionPolicy::kContinuous) return std::max(0, config_.max_running - load_.running);
    if (load_.running > 0) return 0;
    return admission == AdmissionPolicy::kOne ? 1 : config_.max_running;
  }

  bool HasPlaceFor(const Choices& choices) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return starting_.choices + static_cast<int32_t>(choices.size()) <= FreePlaces();
  }

  // The choices of a request share its prompt.
  void CountArrival(const Choices& choices) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Arrivals& arrivals = HasPlaceFor(choices) ? starting_ : arriving_;
    arrivals.choices += static_cast<int32_t>(choices.size());
    arrivals.tokens += choices[0]->prompt_tokens();
  }

  // Why a new request cannot be taken.
  absl::Status Refusal(const Choices& choices) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (load_.draining) return absl::UnavailableError("the server is draining");
    if (HasPlaceFor(choices)) return absl::OkStatus();
    const int32_t queued = load_.queued + arriving_.choices;
    const int64_t tokens = load_.queued_tokens + arriving_.tokens;
    const int64_t queued_then = int64_t{queued} + static_cast<int64_t>(choices.size());
    const int64_t tokens_then = tokens + choices[0]->prompt_tokens();
    const bool too_many = queued_then > config_.max_queued_requests;
    if (queued == 0 || (!too_many && tokens_then <= config_.max_queued_tokens)) return absl::OkStatus();
    const std::string limit = too_many
                                  ? absl::StrCat("--max_queued_requests is ", config_.max_queued_requests)
                                  : absl::StrCat("--max_queued_tokens is ", config_.max_queued_tokens);
    return Overloaded(
        "QUEUE_FULL",
        absl::StrFormat("the queue is full: %d requests with %d tokens wait; %s", queued, tokens, limit),
        RetryDelay(queued, config_.max_running));
  }

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !inbox_.empty(); }

  template <typename T>
  void Post(T message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // An engine that had nothing to do begins to owe progress.
    if (!working_ && inbox_.empty()) progress_ns_ = clock_->NowNs();
    inbox_.emplace_back(std::move(message));
  }

  void Run() {
    bool idle = false;
    for (;;) {
      bool stopping;
      std::vector<Message> messages;
      {
        absl::MutexLock lock(&mutex_);
        if (idle) mutex_.Await(absl::Condition(this, &Impl::HasWork));
        working_ |= !inbox_.empty();
        messages.swap(inbox_);
        stopping = stopping_;
      }
      for (Message& message : messages) Handle(std::move(message));
      if (stopping) core_.CancelAll(absl::CancelledError("the server stopped"));
      idle = !RunOnce();
      if (idle) CheckWhenDue();
      if (stopping && idle) return;
    }
  }

  void Handle(Message message) {
    if (auto* choices = std::get_if<Choices>(&message)) {
      core_.Add(std::move(*choices));
    } else if (auto* cancellation = std::get_if<Cancellation>(&message)) {
      core_.Cancel(cancellation->id, cancellation->why);
    } else {
      core_.FinishStopped(std::get<Stopped>(message).id);
    }
  }

  bool RunOnce() {
    const int64_t steps = core_.totals().steps;
    core_.BeginSteps();
    TakeLoad();  // who was admitted does not wait any more, however long the step takes
    absl::StatusOr<bool> worked = core_.FinishStep();
    if (!worked.ok()) {
      // Nothing on the device can be trusted any more; the router continues the streams elsewhere.
      LogError("the device is lost: {}", worked.status().ToString());
      std::_Exit(EXIT_FAILURE);
    }
    TakeLoad();
    absl::MutexLock lock(&mutex_);
    const bool rests = load_.running == 0 && load_.queued == 0;
    working_ = *worked || !rests;
    if (core_.totals().steps > steps || rests) progress_ns_ = clock_->NowNs();
    return *worked;
  }

  void TakeLoad() {
    const EngineLoad load = core_.Load();
    absl::MutexLock lock(&mutex_);
    const bool draining = load_.draining;
    load_ = load;
    load_.draining = draining;
    // What is still in the inbox arrived after the snapshot.
    starting_ = {};
    arriving_ = {};
    for (const Message& message : inbox_) {
      if (const auto* choices = std::get_if<Choices>(&message)) CountArrival(*choices);
    }
  }

  // An idle engine has the time to find out that memory was lost, before it serves from it for days.
  void CheckWhenDue() {
    const int64_t now_ns = clock_->NowNs();
    if (now_ns - last_check_ns_ < kCheckIntervalNs) return;
    last_check_ns_ = now_ns;
    core_.CheckInvariant();
  }

  const EngineConfig config_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::vector<Message> inbox_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;     // the engine thread has something to do
  int64_t progress_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // last sign of progress, while there is something to do
  SequenceId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);
  Arrivals starting_ ABSL_GUARDED_BY(mutex_);  // in the inbox, with a free place each
  Arrivals arriving_ ABSL_GUARDED_BY(mutex_);  // in the inbox, to wait
  OutputThread output_;        // outlives the engine thread, which pushes to it
  EngineCore core_;            // engine thread only
  int64_t last_check_ns_ = 0;  // engine thread only
  std::thread thread_;
};

absl::Status CheckFits(const EngineConfig& config, int64_t prompt_tokens, int64_t max_tokens) {
  const bool by_slots = config.policy.memory == MemoryPolicy::kSlots;
  const int64_t slot = BlocksForTokens(config.max_context);
  if (by_slots && slot > config.num_blocks) {
    return TooLarge("KV_CACHE_TOO_SMALL",
                    absl::StrFormat("a slot needs KV memory for %d tokens; the server has it for %d",
                                    slot * kBlockTokens, int64_t{config.num_blocks} * kBlockTokens));
  }
  const int64_t needed = SequenceMemory::BlocksAtLimit(prompt_tokens, max_tokens);
  const int64_t available = by_slots ? slot : config.num_blocks;
  if (needed <= available) return absl::OkStatus();
  return TooLarge(
      "KV_CACHE_TOO_SMALL",
      absl::StrFormat("prompt and max_tokens need KV memory for %d tokens; %s has it for %d",
                      needed * kBlockTokens, by_slots ? "a slot" : "the server", available * kBlockTokens));
}

Engine::Engine(const EngineConfig& config, Backend* backend, Clock* clock, EngineMetrics* metrics)
    : impl_(std::make_unique<Impl>(config, backend, clock, metrics)) {}

Engine::~Engine() = default;

absl::Status Engine::CheckFits(int64_t prompt_tokens, int64_t max_tokens) const {
  return worker::CheckFits(impl_->config(), prompt_tokens, max_tokens);
}

SequenceId Engine::Submit(SequenceSpec spec, std::shared_ptr<TokenSink> sink, int32_t num_choices) {
  return impl_->Submit(std::move(spec), std::move(sink), num_choices);
}

void Engine::Cancel(SequenceId id, absl::Status why) {
  impl_->Send(Cancellation{id, std::move(why)});
}

void Engine::Drain() {
  impl_->Drain();
}

int64_t Engine::StalledNs() const {
  return impl_->StalledNs();
}

EngineLoad Engine::Load() const {
  return impl_->Load();
}

}  // namespace ridge::worker
