// One sequence on its way through the engine: what was asked, and how far it has come.
//
// A SequenceSpec is immutable. A Sequence belongs to the engine thread from the moment the engine takes it
// from its inbox until it is destroyed; nothing else reads it. States and invariants: docs/contracts.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/step_plan.h"
#include "worker/memory/prefix_cache.h"

namespace ridge::worker {

// Names a sequence within one engine; never reused.
using SequenceId = uint64_t;

enum class FinishReason { kStop, kLength, kContext };

// Tokens that may not come next, by what a sequence generated so far (words that must not be in its text).
// Immutable; used by the engine thread.
class NextTokenBans {
 public:
  virtual ~NextTokenBans() = default;

  // What matters of the output so far, 0 at its beginning; and after one token more.
  virtual int32_t Advance(int32_t state, TokenId token) const = 0;
  virtual std::vector<TokenId> Banned(int32_t state) const = 0;
};

struct SequenceSpec {
  std::string request_id;  // internal id, for logs
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  TokenControls controls;
  std::shared_ptr<const NextTokenBans> bans;  // null: none. A step waits for the tokens of the one before
  bool prompt_logprobs = false;               // score the prompt's tokens
  int32_t max_tokens = 1;                     // >= 1; prompt and max_tokens together fit the context
  // What reaching max_tokens means: kLength, or kContext where the context set the limit.
  FinishReason limit_reason = FinishReason::kLength;
  std::vector<TokenId> stop_ids;  // end of sequence included, unless it is ignored
  int64_t arrival_ns = 0;         // on the engine's clock
  int64_t deadline_ns = INT64_MAX;
  int32_t priority = 0;    // higher runs earlier
  std::string tenant;      // whose share of the engine it takes
  std::string cache_salt;  // prefixes are shared between sequences of equal salt only
};

// A generated token as the output thread sees it.
struct TokenEvent {
  TokenId id;
  float logprob;
  int64_t time_ns;                     // when its step was collected
  bool is_last;                        // the sequence ends with this token; OnEnd follows
  std::vector<TokenLogprob> top = {};  // the most likely tokens, as many as were asked for
  int32_t choice = 0;
};

// A scored token of the prompt.
struct PromptLogprob {
  float logprob;
  std::vector<TokenLogprob> top;
};

// How a sequence ended. Exactly one a sequence.
struct Outcome {
  absl::Status status;                        // not OK: cancelled, past its deadline, or the engine stopped
  FinishReason reason = FinishReason::kStop;  // where status is OK
  int64_t admitted_ns = 0;                    // first step that worked on it was planned; 0: never
  int32_t cached_tokens = 0;                  // of the prompt, taken from the prefix cache
};

// Receives what a sequence generates. All calls come from the engine's output thread, in order, and return
// without blocking.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // Log-probabilities of the prompt's tokens, from the second one on, piece by piece; all of them come before
  // the first token. Sinks whose sequences ask for none need not care.
  virtual void OnPromptLogprobs(std::vector<PromptLogprob> /*logprobs*/) {}
  // Returns false where the token completed a stop string: the sequence then ends with reason kStop, later
  // tokens of it are dropped, and OnEnd follows.
  virtual bool OnToken(const TokenEvent& token) = 0;
  // The token before was the choice's last: it ended well. OnEnd follows after that of the last choice.
  virtual void OnChoiceEnd(int32_t /*choice*/, const Outcome& /*outcome*/) {}
  // The last call: the outcome of all choices, or the error that ended them.
  virtual void OnEnd(const Outcome& outcome) = 0;
};

// The output side of a request, whose sequences have ids from `id` on, one a choice; shared by the engine
// thread, which only passes it on, and the output thread, which alone reads and writes what is in it.
struct OutputStream {
  std::shared_ptr<TokenSink> sink;
  SequenceId id = 0;
  int64_t arrival_ns = 0;
  int32_t prompt_tokens = 0;

  struct Choice {
    bool ended = false;  // what still arrives of it is dropped
    int32_t tokens = 0;
    int64_t last_token_ns = 0;
  };
  std::vector<Choice> choices = std::vector<Choice>(1);
  int32_t open_choices = 1;
  bool ended = false;       // OnEnd was called: what still arrives is dropped
  int64_t admitted_ns = 0;  // of the choice that was first
  int32_t cached_tokens = 0;
  int64_t first_token_ns = 0;  // of any choice; 0: there was none
  int64_t last_token_ns = 0;
};

enum class SequenceState {
  kWaiting,
  kRunning,
  kPreempted,  // waits again as soon as no step in flight has rows of it
  kFinished,
};

struct Tenant;
struct Sequence;

// The choices of one request that did not finish, shared by them; see forks.h.
struct ChoiceGroup {
  std::vector<Sequence*> choices;
  bool prompt_planned = false;  // by one of them, once
};

// "Planned" counts what was submitted to the backend, which runs ahead of what was collected.
struct Sequence {
  Sequence() : Sequence(std::make_shared<SequenceSpec>(), 0) {}
  Sequence(std::shared_ptr<SequenceSpec> of_request, int32_t of_choice)
      : shared_spec(std::move(of_request)), spec(*shared_spec), choice(of_choice) {}

  SequenceId id = 0;  // ascending in the order of arrival
  // One for all choices of a request; nobody changes it once the engine has it.
  std::shared_ptr<SequenceSpec> shared_spec;
  SequenceSpec& spec;
  int32_t choice;  // of the request, from 0; draws and output count it from spec.sampling.choice
  std::shared_ptr<OutputStream> output;

  SequenceState state = SequenceState::kWaiting;
  Tenant* tenant = nullptr;        // from Scheduler::Add until it is finished
  std::vector<TokenId> generated;  // tokens collected
  int64_t admitted_ns = 0;         // the first time
  int32_t cached_tokens = 0;       // of the prompt, found in the prefix cache when it was first admitted
  int32_t preemptions = 0;
  SequenceId first_choice = 0;         // the id of its request's first choice
  std::shared_ptr<ChoiceGroup> group;  // null where the request has one choice
  bool held = false;                   // waits, and not for admission yet (forks.h)
  int32_t lent_tokens = 0;             // of the prompt while it waits: another choice has them
  int32_t scored_tokens = 0;           // log-probabilities of the prompt that were collected
  int32_t ban_state = 0;               // of spec.bans after what was generated

  // What follows holds from an admission to the end of the stay.
  SlotId slot = -1;
  std::vector<BlockId> blocks;   // one reader of each, in the order of positions
  int32_t prefill_tokens = 0;    // known when it was admitted: the prompt and what was generated before
  int64_t prefilled_ns = 0;      // when rows of what was known then were planned last
  int32_t planned_rows = 0;      // K and V exist, or will, for positions [0, planned_rows)
  int32_t planned_tokens = 0;    // tokens generated once all submitted steps are collected
  int32_t collected_rows = 0;    // K and V exist for positions [0, collected_rows)
  int32_t published_blocks = 0;  // of `blocks`, as far as the prefix cache knows them
  ChainNode chain;  // after the published blocks; gone where one of it was another's, and evicted
  int64_t lends_from_plan = -1;  // from which plan on others may read its prompt's K and V; -1: not yet
  int32_t steps_in_flight = 0;   // submitted steps with rows of this sequence

  int32_t prompt_tokens() const { return static_cast<int32_t>(spec.prompt.size()); }
  int32_t known_tokens() const { return prompt_tokens() + static_cast<int32_t>(generated.size()); }
  // A prompt's or a collected token.
  TokenId token(int32_t position) const {
    return position < prompt_tokens() ? spec.prompt[position] : generated[position - prompt_tokens()];
  }
  // The same for positions [begin, end).
  void CopyTokens(int32_t begin, int32_t end, std::vector<TokenId>* tokens) const {
    const int32_t prompt = prompt_tokens();
    tokens->clear();
    if (begin < prompt)
      tokens->assign(spec.prompt.begin() + begin, spec.prompt.begin() + std::min(end, prompt));
    if (end > prompt) {
      tokens->insert(tokens->end(), generated.begin() + (std::max(begin, prompt) - prompt),
                     generated.begin() + (end - prompt));
    }
  }
  // Which draws are its own, and whose output it gives.
  uint32_t choice_number() const { return spec.sampling.choice + static_cast<uint32_t>(choice); }
  // Log-probabilities of the prompt that are still to be collected, by the first choice: all tokens but the
  // first have one.
  bool wants_scores() const {
    return spec.prompt_logprobs && choice == 0 && scored_tokens < prompt_tokens() - 1;
  }
  // Whether the next row has to wait until the tokens before it are known here.
  bool waits_for_tokens() const { return spec.bans != nullptr && steps_in_flight > 0; }
  bool prefill_planned() const { return planned_rows >= prefill_tokens; }
  bool all_planned() const { return planned_tokens >= spec.max_tokens; }
};

}  // namespace ridge::worker
