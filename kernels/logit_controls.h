// What happens to a row of logits before a token is sampled from it (kernels/sampling.h), exactly, in fp32,
// one rounding an operation, so that every device does the same. For each id, with logit l:
//   1. repetition penalty r, where the id is in the prompt or in the output: l / r where l > 0, else l * r;
//   2. frequency penalty f and presence penalty p, where the id is in the output c > 0 times: (l - f * c) -
//   p;
//   3. bias b: l + b;
//   4. masks: an id that is not allowed, or banned, becomes minus infinity.
// The output are the tokens that were generated before this one, whatever was preempted or resumed meanwhile.
// Log-probabilities are those of the logits before all this.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/math.h"

namespace ridge::kernels {

struct Penalties {
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;
};

// How often a token occurred: the highest bit says whether it is in the prompt, the others count it in the
// output.
inline constexpr uint32_t kInPrompt = 1u << 31;

// Steps 1 and 2.
RIDGE_HD inline float Penalise(float logit, uint32_t occurrences, const Penalties& penalties) {
  if (occurrences == 0) return logit;
  logit = logit > 0.0f ? logit / penalties.repetition : logit * penalties.repetition;
  const uint32_t count = occurrences & ~kInPrompt;
  if (count == 0) return logit;
  const float product = penalties.frequency * static_cast<float>(count);
  return (logit - product) - penalties.presence;
}

struct LogitBias {
  int32_t id;
  float bias;
};

// A set of ids as bits: id is bit id % 32 of word id / 32.
RIDGE_HD inline constexpr int64_t MaskWords(int64_t vocab) {
  return (vocab + 31) / 32;
}

// One row's controls. Lists may name ids in any order, each once.
struct RowControls {
  Penalties penalties;
  absl::Span<const uint32_t> occurrences;  // [vocab]; empty where there is no penalty
  absl::Span<const LogitBias> bias;
  absl::Span<const uint32_t> allowed;  // [MaskWords(vocab)]; empty: all are
  absl::Span<const int32_t> banned;
  absl::Span<const int32_t> also_banned;
};

// In place.
void ApplyControls(const RowControls& controls, absl::Span<float> logits);

// Sets `top` to the ids of the `count` largest logits, the largest first, of equal ones the lowest id. All
// where there are fewer.
void TopIds(absl::Span<const float> logits, int32_t count, std::vector<int32_t>* top);

}  // namespace ridge::kernels
