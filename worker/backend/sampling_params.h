// How one sequence's tokens are chosen; the device side of a request's sampling fields, every default
// applied. Plain data. kernels/sampling.h defines what each field does, and in which order.
#pragma once

#include <cstdint>
#include <vector>

namespace ridge::worker {

using TokenId = int32_t;

// Most tokens whose log-probabilities a row gives besides its own; nor are they more than the vocabulary has.
inline constexpr int32_t kMaxTopLogprobs = 20;

// Most biases of a sequence.
inline constexpr int32_t kMaxTokenBiases = 1024;

// Of a fixed size, copied freely.
struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  float top_p = 1.0f;        // (0, 1]; 1 is off
  int32_t top_k = 0;         // 0 is off
  float min_p = 0.0f;        // [0, 1]; 0 is off
  uint64_t seed = 0;
  uint32_t choice = 0;       // index of the choice, part of the draw's counter
  bool logprobs = false;     // report the log-probability of each chosen token
  int32_t top_logprobs = 0;  // and of the most likely ones; only with logprobs; at most kMaxTopLogprobs
  int32_t prompt_top_logprobs = 0;  // the same for scored rows, which always report that of their token
  float repetition_penalty = 1.0f;  // (0, 10]; 1 is off; of tokens in the prompt or the output
  float presence_penalty = 0.0f;    // [-2, 2]; 0 is off; of tokens in the output
  float frequency_penalty = 0.0f;   // [-2, 2]; 0 is off; for each time that a token is in the output

  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

struct TokenBias {
  TokenId id;
  float bias;  // finite
};

// What a sequence may generate; most have none of it. Ids are those of the vocabulary; no list names one
// twice. Together they leave at least one id.
struct TokenControls {
  std::vector<TokenBias> bias;       // added to logits
  std::vector<TokenId> allowed_ids;  // not empty: no other is generated
  std::vector<TokenId> banned_ids;   // never generated
  std::vector<TokenId> late_ids;     // not generated among the first min_tokens tokens
  int32_t min_tokens = 0;

  bool empty() const {
    return bias.empty() && allowed_ids.empty() && banned_ids.empty() && (late_ids.empty() || min_tokens == 0);
  }
};

}  // namespace ridge::worker
