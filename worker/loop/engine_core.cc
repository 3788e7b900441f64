#include "worker/loop/engine_core.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace ridge::worker {
namespace {

// A step that takes less has its successor submitted at once.
constexpr int64_t kLongStepNs = 4'000'000;
// How long before the expected end of a long step its successor is planned: what planning and submitting
// take, with waking up, and this share of the step for what the expectation may be wrong.
constexpr int64_t kPlanningNs = 200'000;
constexpr int64_t kUncertainShare = 64;

OutputItem EndItem(const Sequence& sequence, const absl::Status& status) {
  OutputItem item;
  item.stream = sequence.output;
  item.has_end = true;
  item.outcome.status = status;
  item.outcome.admitted_ns = sequence.admitted_ns;
  item.outcome.cached_tokens = sequence.cached_tokens;
  return item;
}

}  // namespace

EngineCore::EngineCore(const EngineConfig& config, Backend* backend, Clock* clock, EngineMetrics* metrics,
                       std::function<void(std::vector<OutputItem>)> deliver)
    : config_(config),
      backend_(backend),
      clock_(clock),
      metrics_(metrics),
      deliver_(std::move(deliver)),
      pool_(config.num_blocks),
      cache_(&pool_),
      scheduler_(
          {config.max_running, config.step_tokens, config.chunk_tokens, config.policy, config.max_context},
          &pool_, &cache_) {}

void EngineCore::Add(std::unique_ptr<Sequence> sequence) {
  std::vector<std::unique_ptr<Sequence>> choices;
  choices.push_back(std::move(sequence));
  Add(std::move(choices));
}

void EngineCore::Add(std::vector<std::unique_ptr<Sequence>> choices) {
  const SequenceSpec& spec = choices[0]->spec;
  RIDGE_CHECK(!spec.prompt.empty() && spec.max_tokens >= 1);
  const SequenceId first = choices[0]->id;
  Request& request = requests_[first];
  request.deadline_ns = spec.deadline_ns;
  if (spec.deadline_ns != INT64_MAX) deadlines_.emplace(spec.deadline_ns, first);
  if (config_.queue_timeout_ns != INT64_MAX) {
    const int64_t now_ns = clock_->NowNs();
    queue_limits_.emplace_back(now_ns + std::min(config_.queue_timeout_ns, INT64_MAX - now_ns), first);
  }
  for (const std::unique_ptr<Sequence>& choice : choices) {
    choice->first_choice = first;
    request.choices.push_back(choice.get());
  }
  if (choices.size() > 1) {
    const auto group = std::make_shared<ChoiceGroup>(ChoiceGroup{request.choices});
    for (Sequence* choice : request.choices) choice->group = group;
  }
  for (std::unique_ptr<Sequence>& choice : choices) {
    scheduler_.Add(choice.get());
    const SequenceId id = choice->id;
    sequences_.emplace(id, std::move(choice));
  }
}

void EngineCore::Cancel(SequenceId id, const absl::Status& why) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const std::vector<Sequence*> choices = it->second.choices;
  std::vector<OutputItem> items;
  items.push_back(EndItem(*choices[0], why));
  for (Sequence* choice : choices) {
    End(choice);
    Settle(choice);
  }
  deliver_(std::move(items));
}

void EngineCore::FinishStopped(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second->state == SequenceState::kFinished) return;
  End(it->second.get());
  Settle(it->second.get());
}

void EngineCore::CancelAll(const absl::Status& why) {
  std::vector<SequenceId> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (SequenceId id : ids) Cancel(id, why);
}

void EngineCore::BeginSteps() {
  EndExpired();
  SubmitSteps();
}

absl::StatusOr<bool> EngineCore::FinishStep() {
  const bool worked = !in_flight_.empty();
  if (const int64_t wait_ns = NsUntilSuccessor(); wait_ns > 0) {
    backend_->WaitFor(in_flight_.front().ticket, wait_ns);
    in_flight_.front().is_ending = true;
  } else if (worked) {
    absl::Status status = CollectStep();
    if (!status.ok()) return status;
  }
  ReportLoad();
  return worked;
}

void EngineCore::EndExpired() {
  const int64_t now_ns = clock_->NowNs();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    // Ending the sequence takes its deadline out.
    Cancel(deadlines_.begin()->second, absl::DeadlineExceededError("the request's deadline passed"));
  }
  for (; !queue_limits_.empty() && queue_limits_.front().first <= now_ns; queue_limits_.pop_front()) {
    const auto it = requests_.find(queue_limits_.front().second);
    if (it == requests_.end() || it->second.admitted) continue;
    Cancel(it->first,
           Overloaded("QUEUE_TIMEOUT", "the request waited for its turn as long as --queue_timeout lets it",
                      RetryDelay(scheduler_.num_waiting(), config_.max_running)));
  }
}

void EngineCore::SubmitSteps() {
  while (in_flight_.size() < MostInFlight() && NsUntilSuccessor() == 0) {
    const int64_t now_ns = clock_->NowNs();
    ScheduledStep step = scheduler_.Plan(now_ns);
    if (step.empty()) return;
    for (Sequence* sequence : step.admitted) {
      if (sequence->admitted_ns == 0) sequence->admitted_ns = now_ns;
      requests_.at(sequence->first_choice).admitted = true;
    }
    const StepTicket ticket = backend_->Submit(step.plan);
    const StepCounts counts = CountsOf(step.plan);
    in_flight_.push_back({ticket, std::move(step), counts, now_ns, step_times_.Expect(counts)});
  }
}

int64_t EngineCore::NsUntilSuccessor() const {
  if (MostInFlight() == 1 || in_flight_.size() != 1) return 0;
  const InFlightStep& running = in_flight_.front();
  if (running.is_ending || running.expected_ns < kLongStepNs) return 0;
  // A step that was submitted while another ran begins when that one ends.
  const int64_t begin_ns = std::max(running.submitted_ns, last_collected_ns_);
  const int64_t due_ns = begin_ns + running.expected_ns - running.expected_ns / kUncertainShare - kPlanningNs;
  return std::max<int64_t>(due_ns - clock_->NowNs(), 0);
}

absl::Status EngineCore::CollectStep() {
  InFlightStep flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  absl::StatusOr<StepResult> result = backend_->Collect(flight.ticket);
  if (!result.ok()) return result.status();

  ++totals_.steps;
  totals_.rows += result->rows;
  totals_.padded_rows += result->padded_rows;
  totals_.kv_positions += result->kv_positions;
  totals_.launches += result->launches;
  const int64_t now_ns = clock_->NowNs();
  const int64_t duration_ns = now_ns - std::max(flight.submitted_ns, last_collected_ns_);
  step_times_.Add(flight.counts, duration_ns);
  metrics_->OnStep(static_cast<int32_t>(flight.step.sequences.size()), flight.step.decode_rows,
                   flight.step.prefill_rows, duration_ns);
  last_collected_ns_ = now_ns;

  std::vector<OutputItem> items;
  items.reserve(result->outputs.size());
  OutputReader outputs(*result);
  scheduler_.PrefetchCollected(flight.step);
  for (size_t i = 0; i < flight.step.sequences.size(); ++i) {
    Sequence* sequence = flight.step.sequences[i];
    const Segment& segment = flight.step.plan.segments[i];
    scheduler_.OnCollected(sequence, segment.num_rows);
    TakeScores(sequence, segment, &outputs, &items);
    if (segment.num_outputs > 0) TakeToken(sequence, &outputs, now_ns, &items);
    Settle(sequence);
  }
  RIDGE_CHECK(outputs.at_end());
  deliver_(std::move(items));
  return absl::OkStatus();
}

const RowOutput& EngineCore::OutputReader::Next() {
  RIDGE_CHECK(next_ < result_.outputs.size());
  const RowOutput& output = result_.outputs[next_++];
  top_begin_ = top_end_;
  top_end_ += static_cast<size_t>(output.num_top);
  RIDGE_CHECK(top_end_ <= result_.top.size());
  return output;
}

std::vector<TokenLogprob> EngineCore::OutputReader::Top() const {
  return {result_.top.begin() + static_cast<int64_t>(top_begin_),
          result_.top.begin() + static_cast<int64_t>(top_end_)};
}

void EngineCore::TakeScores(Sequence* sequence, const Segment& segment, OutputReader* outputs,
                            std::vector<OutputItem>* items) {
  OutputItem item;
  item.stream = sequence->output;
  for (int32_t i = 0; i < segment.num_scored; ++i) {
    const RowOutput& output = outputs->Next();
    // A sequence that was preempted within its prompt scores some tokens again.
    if (sequence->state == SequenceState::kFinished || segment.first_position + i != sequence->scored_tokens)
      continue;
    ++sequence->scored_tokens;
    item.prompt_logprobs.push_back({output.logprob, outputs->Top()});
  }
  if (!item.prompt_logprobs.empty()) items->push_back(std::move(item));
}

void EngineCore::TakeToken(Sequence* sequence, OutputReader* outputs, int64_t now_ns,
                           std::vector<OutputItem>* items) {
  const RowOutput& output = outputs->Next();
  if (sequence->state == SequenceState::kFinished)
    return;  // the row that was already under way when it ended
  const SequenceSpec& spec = sequence->spec;
  sequence->generated.push_back(output.token);
  if (spec.bans != nullptr) sequence->ban_state = spec.bans->Advance(sequence->ban_state, output.token);
  OutputItem item;
  item.stream = sequence->output;
  item.has_token = true;
  item.token = {output.token,      output.logprob, now_ns,
                /*is_last=*/false, outputs->Top(), static_cast<int32_t>(sequence->choice_number())};
  item.outcome.admitted_ns = sequence->admitted_ns;
  item.outcome.cached_tokens = sequence->cached_tokens;
  const bool stops =
      std::find(spec.stop_ids.begin(), spec.stop_ids.end(), output.token) != spec.stop_ids.end();
  if (stops || static_cast<int32_t>(sequence->generated.size()) == spec.max_tokens) {
    item.token.is_last = true;
    item.has_end = true;
    item.outcome.reason = stops ? FinishReason::kStop : spec.limit_reason;
    End(sequence);
  }
  items->push_back(std::move(item));
}

void EngineCore::End(Sequence* sequence) {
  const auto it = requests_.find(sequence->first_choice);
  RIDGE_CHECK(it != requests_.end());
  std::erase(it->second.choices, sequence);
  if (it->second.choices.empty()) {
    deadlines_.erase({it->second.deadline_ns, it->first});
    requests_.erase(it);
  }
  scheduler_.Remove(sequence);
}

void EngineCore::Settle(Sequence* sequence) {
  scheduler_.Settle(sequence);
  if (sequence->state == SequenceState::kFinished && sequence->steps_in_flight == 0)
    sequences_.erase(sequence->id);
}

void EngineCore::ReportLoad() {
  const double used = pool_.num_blocks() - pool_.available_blocks();
  metrics_->SetLoad(scheduler_.num_running(), scheduler_.num_waiting(),
                    used / std::max(1, pool_.num_blocks()));
  metrics_->SetCounters(scheduler_.preemptions(), scheduler_.prefix_counters(), cache_.evictions());
}

EngineLoad EngineCore::Load() const {
  EngineLoad load;
  load.running = scheduler_.num_running();
  load.queued = scheduler_.num_waiting();
  load.queued_tokens = scheduler_.waiting_tokens();
  load.free_blocks = pool_.available_blocks();
  return load;
}

void EngineCore::CheckInvariant() const {
  std::vector<const Sequence*> sequences;
  for (const auto& [id, sequence] : sequences_) sequences.push_back(sequence.get());
  scheduler_.CheckInvariant(sequences);
}

}  // namespace ridge::worker
