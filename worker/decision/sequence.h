// One sequence on its way through the engine: what was asked, and how far it has come.
//
// A SequenceSpec is immutable. A Sequence belongs to the engine thread from the moment the engine takes it from its inbox
// until it is destroyed; nothing else reads it. States and invariants: docs/contracts.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/step_plan.h"

namespace ridge::worker {

// Names a sequence within one engine; never reused.
using SequenceId = uint64_t;

enum class FinishReason { kStop, kLength, kContext };

struct SequenceSpec {
  std::string request_id;  // internal id, for logs
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  int32_t max_tokens = 1;  // >= 1; prompt and max_tokens together fit the context
  // What reaching max_tokens means: kLength, or kContext where the context set the limit.
  FinishReason limit_reason = FinishReason::kLength;
  std::vector<TokenId> stop_ids;  // end of sequence included, unless it is ignored
  int64_t arrival_ns = 0;         // on the engine's clock
  int64_t deadline_ns = INT64_MAX;
};

// A generated token as the output thread sees it.
struct TokenEvent {
  TokenId id;
  float logprob;
  int64_t time_ns;  // when its step was collected
  bool is_last;     // the sequence ends with this token; OnEnd follows
};

// How a sequence ended. Exactly one a sequence.
struct Outcome {
  absl::Status status;  // not OK: cancelled, past its deadline, or the engine stopped
  FinishReason reason = FinishReason::kStop;  // where status is OK
  int64_t admitted_ns = 0;                    // first step that worked on it was planned; 0: never
  int32_t cached_tokens = 0;                  // of the prompt, taken from the prefix cache
};

// Receives what a sequence generates. All calls come from the engine's output thread, in order, and return without
// blocking.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // Returns false where the token completed a stop string: the sequence then ends with reason kStop, later tokens of it
  // are dropped, and OnEnd follows.
  virtual bool OnToken(const TokenEvent& token) = 0;
  // The last call.
  virtual void OnEnd(const Outcome& outcome) = 0;
};

// The output side of a sequence; shared by the engine thread, which only passes it on, and the output thread, which alone
// reads and writes what is in it.
struct OutputStream {
  std::shared_ptr<TokenSink> sink;
  SequenceId id = 0;
  int64_t arrival_ns = 0;
  int32_t prompt_tokens = 0;

  bool ended = false;  // OnEnd was called: what still arrives is dropped
  int32_t tokens = 0;
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
};

enum class SequenceState { kWaiting, kRunning, kFinished };

// "Planned" counts what was submitted to the backend, which runs ahead of what was collected.
struct Sequence {
  SequenceId id = 0;
  SequenceSpec spec;
  std::shared_ptr<OutputStream> output;

  SequenceState state = SequenceState::kWaiting;
  SlotId slot = -1;             // while running
  std::vector<BlockId> blocks;  // owned, in the order of positions
  int32_t planned_rows = 0;     // K and V exist, or will, for positions [0, planned_rows)
  int32_t planned_tokens = 0;   // tokens generated once all submitted steps are collected
  int32_t generated = 0;        // tokens collected
  int32_t steps_in_flight = 0;  // submitted steps with rows of this sequence
  int64_t admitted_ns = 0;

  int32_t prompt_tokens() const { return static_cast<int32_t>(spec.prompt.size()); }
  bool prefill_planned() const { return planned_rows >= prompt_tokens(); }
};

}  // namespace ridge::worker
