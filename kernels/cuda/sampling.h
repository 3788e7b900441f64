// The next token of each output row from its logits, on the device: the definition of kernels/sampling.h, the
// same token and logprob bits as the CPU's on the same logits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/logit_controls.h"
#include "kernels/order.h"

namespace ridge::kernels::cuda {

// A slot's sampling parameters, as SamplerSettings has them; device memory holds one a slot.
struct SlotSampling {
  uint64_t seed;
  uint32_t choice;
  float temperature;
  float top_p;
  float min_p;
  int32_t top_k;
  int32_t logprobs;  // non-zero: the chosen token's log-probability is wanted
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t penalised = 0;            // non-zero: there is a penalty, and sampled tokens are counted
  int32_t num_biases = 0;           // entries of the slot's row of SlotControls::biases
  int32_t late_position = 0;        // the first position that may take a late token
  int32_t top_logprobs = 0;         // most likely tokens that a sampled row reports, at most kMaxTopLogprobs
  int32_t prompt_top_logprobs = 0;  // the same of a scored row
};

// The last kernel has 8 bytes a slice, and its own besides, in the 48 KiB of shared memory that a block has
// on every card.
inline constexpr int32_t kMaxSamplingVocabulary = (48 - 2) * 1024 / 8 * kVocabularySlice;
inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr int32_t kMaxBiases = 1024;

// What penalties, biases and masks (kernels/logit_controls.h) need of each slot. A slot that uses none of
// them is never looked at here.
struct SlotControls {
  uint32_t* occurrences = nullptr;  // [slots][vocab], as Penalise takes them
  const uint32_t* masks =
      nullptr;  // [slots][3][MaskWords(vocab)]: allowed, late and, for one row, banned tokens
  const LogitBias* biases = nullptr;  // [slots][kMaxBiases]
  float* logits = nullptr;            // [slots][row_stride]: a row's logits after them
};

struct TopLogprob {
  int32_t id;
  float logprob;
};

// A row of logits that wants a token, or the log-probability of a known one.
struct SampleRow {
  int32_t slot;            // negative: a padding row, which gets nothing
  int32_t position;        // absolute position of the token
  int32_t target = -1;     // not negative: the known token
  int32_t controlled = 0;  // non-zero: the slot's controls apply; of a slot's rows one at most
};

struct SamplingArgs {
  const float* logits;  // [num_rows][row_stride], raw; finite or minus infinity
  int64_t row_stride;   // a multiple of 4
  int32_t num_rows;
  int32_t vocab;
  const SampleRow* rows;      // [num_rows]
  const SlotSampling* slots;  // [slots]
  int32_t* last_tokens;  // [slots]: becomes the sampled token. Of several rows of a slot the last one counts
  int32_t* tokens;       // [num_rows]
  float* logprobs;       // [num_rows]; 0 where not wanted
  void* workspace;       // SamplingWorkspaceBytes(num_rows, vocab), 16-byte aligned; needs no clearing
  // Only where a row is controlled or reports the most likely tokens.
  SlotControls controls = {};
  TopLogprob* top = nullptr;  // [num_rows][kMaxTopLogprobs]
};

size_t SamplingWorkspaceBytes(int32_t max_rows, int32_t vocab);

// Counts a sequence's tokens, the first prompt_tokens as the prompt's, into a slot's row of occurrences,
// which is zero. `tokens` may be pinned memory of the host.
[[nodiscard]] cudaError_t LaunchCountTokens(const int32_t* tokens, int32_t count, int32_t prompt_tokens,
                                            uint32_t* occurrences, cudaStream_t stream);

// Five kernels, eight where args.top is not null; rows that do not need one leave it at once.
[[nodiscard]] cudaError_t LaunchSampling(const SamplingArgs& args, cudaStream_t stream);

// Greedy rows whose best token the lm_head matmul found: `best[row]` is the largest PackCandidate
// (sampling_row.cuh) over the vocabulary, and 0 again afterwards.
[[nodiscard]] cudaError_t LaunchTakeBest(uint64_t* best, const SampleRow* rows, int32_t num_rows,
                                         int32_t* last_tokens, int32_t* tokens, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
