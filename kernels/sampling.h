// How the next token follows from a row of logits, once penalties, bias and masks were applied to it
// (kernels/logit_controls.h). The definition is exact, so that every device draws the
// same token. All arithmetic is in fp32, exp and ln are those of kernels/math.h.
//
// temperature 0: the arg max (value, lowest id); so too where the largest logit / temperature overflows.
// Otherwise, with x = logit / temperature:
//   1. min_p keeps ids with x >= max x + ln(min_p);
//   2. top_k keeps the k largest (logit, lowest id);
//   3. top_p: each kept id weighs floor(e^(x - max x) * 2^40), an integer. In descending order (logit, lowest
//      id) an id is kept while the weight before it is less than floor(top_p * total weight), a product in
//      double precision; the first one always is;
//   4. the token is the arg max (value, lowest id) of x + noise over the kept ids. The noise has the Gumbel
//      distribution, so that this samples the softmax of x. It follows from seed, position, choice and id.
//
// Pure functions; a logit may be minus infinity (never drawn while another is finite), not NaN.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/philox.h"

namespace ridge::kernels {

struct SamplerSettings {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  uint64_t seed = 0;
  uint32_t choice = 0;
};

// What a random word is for: the last word of the generator's counter.
enum class DrawPurpose : uint32_t { kToken = 0 };

// Gumbel noise of one id: -ln(-ln(1 - v)), v = (word + 1/2) / 2^32, where the word is number id % 4 of
// Philox(key = seed, counter = (id / 4, position, choice, purpose)). The inner logarithm is taken by the
// series in v below 1/4, and above it of 1 - v, which is formed from the complement of the word: neither end
// loses digits, and v is never 0 or 1.
RIDGE_HD inline float GumbelFromWord(uint32_t word) {
  const float v = (static_cast<float>(word) + 0.5f) * 0x1p-32f;
  const float w = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;  // 1 - v
  const float exponential = v < 0.25f ? TwoAtanh(v / (2.0f - v)) : -Log(w);
  return -Log(exponential);
}

// No noise is larger (word 0 has the largest).
inline constexpr float kMaxGumbel = 22.9f;

// `position` is that of the token to sample. `scratch` is working memory that is reused from call to call.
int32_t SampleToken(absl::Span<const float> logits, const SamplerSettings& settings, uint32_t position,
                    std::vector<int32_t>* scratch);

// The largest value's lowest id.
int32_t ArgMax(absl::Span<const float> logits);

}  // namespace ridge::kernels
