// What the sampling kernels share: candidates as ordered integers, the parts of a row, the workspace.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling.h"
#include "kernels/math.h"
#include "kernels/order.h"
#include "kernels/philox.h"

namespace ridge::kernels::cuda {

// Ids that one block takes; a row is cut into parts.
inline constexpr int kSamplingPart = 4096;
inline constexpr int kSamplingThreads = 256;

// Buckets of ids by how far logit / temperature is below the largest: eighths, the last one takes the rest.
inline constexpr int kSamplingBuckets = 256;

// A value and its id as an integer that orders candidates: the larger value first, of equal ones the lower
// id.
__host__ __device__ inline uint64_t PackCandidate(float value, int32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 is equal to 0
  const uint32_t key = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(id);
}

__host__ __device__ inline int32_t CandidateId(uint64_t candidate) {
  return static_cast<int32_t>(~static_cast<uint32_t>(candidate));
}

__host__ __device__ inline float CandidateValue(uint64_t candidate) {
  const uint32_t key = static_cast<uint32_t>(candidate >> 32);
  return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7FFFFFFFu : ~key);
}

// Not a candidate: below them all.
inline constexpr uint64_t kNoCandidate = 0;

// The arrays of a call of LaunchSampling in its workspace.
struct SamplingBuffers {
  uint64_t* part_best;       // [rows][parts]: the largest logit
  uint64_t* part_draw;       // [rows][parts]: the largest logit / temperature + noise of the kept ids
  uint64_t* threshold;       // [rows]: the last candidate that top_k and top_p keep
  uint64_t* bucket_weights;  // [rows][parts][kSamplingBuckets]
  uint32_t* bucket_counts;   // [rows][parts][kSamplingBuckets]
  float* slice_max;          // [rows][slices]
  float* slice_sum;          // [rows][slices]
  float* slice_best;         // [rows][slices]: the largest after controls
  uint64_t* part_top;        // [rows][parts][kMaxTopLogprobs]: the first of each part by raw logit
  int32_t parts;
  int32_t slices;
};

__device__ inline uint64_t WarpMax(uint64_t value) {
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, value, offset);
    value = value > other ? value : other;
  }
  return value;
}

// The largest over a block; valid in all threads. `shared` has 32 entries.
__device__ inline uint64_t BlockMax(uint64_t value, uint64_t* shared) {
  value = WarpMax(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : kNoCandidate;
  return WarpMax(value);
}

// The largest over a row's parts, by every warp for itself.
__device__ inline uint64_t RowBest(const uint64_t* parts, int count) {
  uint64_t best = kNoCandidate;
  for (int i = threadIdx.x % 32; i < count; i += 32) best = parts[i] > best ? parts[i] : best;
  return WarpMax(best);
}

// The logits that a row is sampled from.
__device__ inline const float* RowLogits(const SamplingArgs& args, int row, const SampleRow& target) {
  return target.controlled != 0 ? args.controls.logits + target.slot * args.row_stride
                                : args.logits + row * args.row_stride;
}

// Whether a row reports log-probabilities, and how many besides its token's.
__device__ inline bool Reports(const SlotSampling& slot, const SampleRow& target) {
  return target.target >= 0 || slot.logprobs != 0;
}
__device__ inline int NumTop(const SlotSampling& slot, const SampleRow& target) {
  if (target.target >= 0) return slot.prompt_top_logprobs;
  return slot.logprobs != 0 ? slot.top_logprobs : 0;
}

// One row's settings with what follows from its largest logit, once SliceStats has found that of each part.
struct RowSampler {
  uint64_t best;  // the largest logit
  SlotSampling settings;
  uint32_t position;
  float max_x;    // of `best`: logit / temperature
  float least_x;  // of min_p
  bool greedy;    // takes the largest, or a known token

  // Called by whole warps.
  __device__ RowSampler(const SamplingArgs& args, const SamplingBuffers& buffers, int row,
                        const SampleRow& target)
      : best(RowBest(buffers.part_best + row * buffers.parts, buffers.parts)),
        settings(args.slots[target.slot]),
        position(static_cast<uint32_t>(target.position)) {
    max_x = __fdiv_rn(CandidateValue(best), settings.temperature);
    greedy = target.target >= 0 || settings.temperature == 0.0f || settings.top_k == 1 ||
             !(fabsf(max_x) < INFINITY);
    least_x = settings.min_p > 0.0f ? __fadd_rn(max_x, Log(settings.min_p)) : -INFINITY;
  }

  __device__ bool Filters() const { return !greedy && (settings.top_k > 0 || settings.top_p < 1.0f); }

  __device__ float X(float logit) const { return __fdiv_rn(logit, settings.temperature); }

  __device__ int BucketOf(float x) const {
    const float eighths = __fmul_rn(__fsub_rn(max_x, x), 8.0f);
    return eighths < kSamplingBuckets - 1 ? static_cast<int>(eighths) : kSamplingBuckets - 1;
  }

  __device__ uint64_t Weight(float x) const {
    return static_cast<uint64_t>(__fmul_rn(Exp(__fsub_rn(x, max_x)), 0x1p40f));
  }
};

}  // namespace ridge::kernels::cuda
