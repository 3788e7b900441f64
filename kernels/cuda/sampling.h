// The next token of each output row from its logits, on the device: the definition of kernels/sampling.h, the
// same token and logprob bits as the CPU's on the same logits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

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
};

// A row of logits that wants a token.
struct SampleRow {
  int32_t slot;      // negative: a padding row, which gets nothing
  int32_t position;  // absolute position of the token to sample
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
};

size_t SamplingWorkspaceBytes(int32_t max_rows, int32_t vocab);

// Five kernels; rows that do not need one leave it at once.
[[nodiscard]] cudaError_t LaunchSampling(const SamplingArgs& args, cudaStream_t stream);

// Greedy rows whose best token the lm_head matmul found: `best[row]` is the largest PackCandidate
// (sampling_row.cuh) over the vocabulary, and 0 again afterwards.
[[nodiscard]] cudaError_t LaunchTakeBest(uint64_t* best, const SampleRow* rows, int32_t num_rows,
                                         int32_t* last_tokens, int32_t* tokens, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
