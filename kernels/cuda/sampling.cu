// A token a row of logits, as kernels/sampling.h defines it, in up to eight kernels:
//   the controls (sampling_controls.cu) for rows that have any, and TopParts for rows that report the most
//   likely
//               tokens: the first ones of each part of a row;
//   SliceStats  per part of a row: the largest logit; per slice of 256 ids what log-sum-exp needs;
//   the filter  (sampling_filter.cu) for rows with top_k or top_p;
//   Draw        per part: the largest logit / temperature + noise of the kept ids;
//   Finish      per row: the token, and its log-probability: slices are folded in ascending order, as
//               reference::LogSumExp folds them. And the most likely tokens, from those of the parts.
// Greedy rows leave the filter and Draw at once.
//
// Geometry: 256 threads a part of 4,096 ids; 256 threads a row for Finish. Shared memory: 8 bytes a slice for
// Finish. Alignment: logits 16 bytes. Bytes: the row twice, four to six times with a filter (L2 after the
// first). Reference: reference::SampleToken, reference::LogSumExp (the same token and bits).
#include "kernels/cuda/sampling.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sampling_controls.h"
#include "kernels/cuda/sampling_filter.h"
#include "kernels/cuda/sampling_row.cuh"
#include "kernels/sampling.h"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = kSamplingThreads;
constexpr int kPart = kSamplingPart;
constexpr int kPartSlices = kPart / kVocabularySlice;
constexpr int kLaneIds = kVocabularySlice / kVirtualLanes;
static_assert(kPartSlices * kVirtualLanes == kThreads);  // 16 threads a slice

// Sum over the 16 threads of a slice by halves; valid in lane 0.
__device__ float SumLanes(float value) {
#pragma unroll
  for (int width = kVirtualLanes / 2; width >= 1; width /= 2)
    value = __fadd_rn(value, __shfl_down_sync(0xFFFFFFFFu, value, width, kVirtualLanes));
  return value;
}

__global__ void __launch_bounds__(kThreads)
    SliceStatsKernel(const __grid_constant__ SamplingArgs args,
                     const __grid_constant__ SamplingBuffers buffers) {
  __shared__ uint64_t shared[32];
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.y, part = blockIdx.x;
  const SampleRow target = args.rows[row];
  if (target.slot < 0) return;
  const float* logits = args.logits + row * args.row_stride;
  const float* controlled = RowLogits(args, row, target);
  const int slice = part * kPartSlices + threadIdx.x / kVirtualLanes, lane = threadIdx.x % kVirtualLanes;
  float values[kLaneIds];
  float largest = -INFINITY;  // after controls
  uint64_t best = kNoCandidate;
#pragma unroll
  for (int i = 0; i < kLaneIds; ++i) {
    const int id = slice * kVocabularySlice + i * kVirtualLanes + lane;
    values[i] = id < args.vocab ? logits[id] : -INFINITY;
    const float sampled = target.controlled != 0 && id < args.vocab ? controlled[id] : values[i];
    largest = fmaxf(largest, sampled);
    if (id < args.vocab) best = max(best, PackCandidate(sampled, id));
  }
  float slice_max = values[0];
#pragma unroll
  for (int i = 1; i < kLaneIds; ++i) slice_max = fmaxf(slice_max, values[i]);
#pragma unroll
  for (int offset = kVirtualLanes / 2; offset >= 1; offset /= 2) {
    slice_max = fmaxf(slice_max, __shfl_xor_sync(0xFFFFFFFFu, slice_max, offset));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  }
  float sum = 0.0f;
  if (Reports(args.slots[target.slot], target)) {
#pragma unroll
    for (int i = 0; i < kLaneIds; ++i) {
      if (slice * kVocabularySlice + i * kVirtualLanes + lane < args.vocab)
        sum = __fadd_rn(sum, Exp(__fsub_rn(values[i], slice_max)));
    }
    sum = SumLanes(sum);
  }
  if (lane == 0 && slice < buffers.slices) {
    buffers.slice_max[static_cast<int64_t>(row) * buffers.slices + slice] = slice_max;
    buffers.slice_sum[static_cast<int64_t>(row) * buffers.slices + slice] = sum;
    buffers.slice_best[static_cast<int64_t>(row) * buffers.slices + slice] = largest;
  }
  best = BlockMax(best, shared);
  if (threadIdx.x == 0) buffers.part_best[row * buffers.parts + part] = best;
}

// No less than GumbelFromWord(word): -ln(1 - v) >= v >= 2^-(leading zeros + 1). The constants leave room for
// rounding.
__device__ float GumbelBound(uint32_t word) {
  return __fadd_rn(__fmul_rn(0.6932f, static_cast<float>(__clz(static_cast<int>(word)) + 1)), 0.001f);
}

__device__ PhiloxCounter NoiseWords(const RowSampler& sampler, int32_t id) {
  return Philox4x32({static_cast<uint32_t>(id) >> 2, sampler.position, sampler.settings.choice,
                     static_cast<uint32_t>(DrawPurpose::kToken)},
                    sampler.settings.seed);
}

__global__ void __launch_bounds__(kThreads)
    DrawKernel(const __grid_constant__ SamplingArgs args, const __grid_constant__ SamplingBuffers buffers) {
  __shared__ uint64_t shared[32];
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.y, part = blockIdx.x;
  const SampleRow target = args.rows[row];
  if (target.slot < 0) return;
  const RowSampler sampler(args, buffers, row, target);
  if (sampler.greedy) return;
  const uint64_t threshold = sampler.Filters() ? buffers.threshold[row] : kNoCandidate;
  const float* logits = RowLogits(args, row, target);
  // Most ids are ruled out by the top one's draw before their noise is computed, many before their word is.
  const int32_t top = CandidateId(sampler.best);
  float best_value = __fadd_rn(sampler.max_x, GumbelFromWord(NoiseWords(sampler, top)[top & 3]));
  uint64_t best = kNoCandidate;
  for (int first = part * kPart + 4 * threadIdx.x; first < min((part + 1) * kPart, args.vocab);
       first += 4 * kThreads) {
    const float4 loaded = *reinterpret_cast<const float4*>(logits + first);
    const float values[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    PhiloxCounter words{};
    bool has_words = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int id = first + i;
      if (id >= args.vocab || PackCandidate(values[i], id) < threshold) continue;
      const float x = sampler.X(values[i]);
      if (!(x >= sampler.least_x) || __fadd_rn(x, kMaxGumbel) < best_value) continue;
      if (!has_words) {
        words = NoiseWords(sampler, id);
        has_words = true;
      }
      if (__fadd_rn(x, GumbelBound(words[i])) < best_value) continue;
      const float value = __fadd_rn(x, GumbelFromWord(words[i]));
      best = max(best, PackCandidate(value, id));
      best_value = fmaxf(best_value, value);
    }
  }
  best = BlockMax(best, shared);
  if (threadIdx.x == 0) buffers.part_draw[row * buffers.parts + part] = best;
}

// ln of the sum of e^x from the slices' maxima and sums, valid in thread 0. The factors of every step of the
// fold are found by all threads; the steps themselves go one after the other.
__device__ float FoldSlices(const float* slice_max, const float* slice_sum, int slices, float2* steps) {
  __shared__ float warp_max[kThreads / 32];
  const int each = (slices + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, slices), end = min(begin + each, slices);
  float own = -INFINITY;
  for (int i = begin; i < end; ++i) own = fmaxf(own, slice_max[i]);
  // The maximum of all slices before `begin`.
  float until = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xFFFFFFFFu, until, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) until = fmaxf(until, other);
  }
  if (threadIdx.x % 32 == 31) warp_max[threadIdx.x / 32] = until;
  float max = __shfl_up_sync(0xFFFFFFFFu, until, 1);
  if (threadIdx.x % 32 == 0) max = -INFINITY;
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(threadIdx.x / 32); ++warp) max = fmaxf(max, warp_max[warp]);
  for (int i = begin; i < end; ++i) {
    const float new_max = fmaxf(max, slice_max[i]);
    steps[i] = make_float2(Exp(__fsub_rn(max, new_max)),
                           __fmul_rn(slice_sum[i], Exp(__fsub_rn(slice_max[i], new_max))));
    max = new_max;
  }
  __syncthreads();
  if (threadIdx.x != 0) return 0.0f;
  float total_max = -INFINITY;
  for (int warp = 0; warp < kThreads / 32; ++warp) total_max = fmaxf(total_max, warp_max[warp]);
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < slices; ++i) sum = __fmaf_rn(sum, steps[i].x, steps[i].y);
  return __fadd_rn(total_max, Log(sum));
}

// Per part of a row: its first candidates by raw logit, in order, as many as the row reports.
__global__ void __launch_bounds__(kThreads) TopPartsKernel(const __grid_constant__ SamplingArgs args,
                                                           const __grid_constant__ SamplingBuffers buffers) {
  __shared__ uint64_t shared[32];
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.y, part = blockIdx.x;
  const SampleRow target = args.rows[row];
  if (target.slot < 0) return;
  const int count = NumTop(args.slots[target.slot], target);
  if (count == 0) return;
  const float* logits = args.logits + row * args.row_stride;
  constexpr int kEach = kPart / kThreads;
  uint64_t candidates[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int id = part * kPart + i * kThreads + static_cast<int>(threadIdx.x);
    candidates[i] = id < args.vocab ? PackCandidate(logits[id], id) : kNoCandidate;
  }
  uint64_t* to = buffers.part_top + (static_cast<int64_t>(row) * buffers.parts + part) * kMaxTopLogprobs;
  uint64_t previous = UINT64_MAX;
  for (int rank = 0; rank < count; ++rank) {
    uint64_t best = kNoCandidate;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (candidates[i] < previous) best = max(best, candidates[i]);
    }
    previous = BlockMax(best, shared);
    if (threadIdx.x == 0) to[rank] = previous;
    __syncthreads();  // before `shared` is written again
  }
}

// The first candidates of a row from those of its parts; log_sum is valid in thread 0. Called by all threads.
__device__ void MergeTop(const SamplingArgs& args, const SamplingBuffers& buffers, int row, int count,
                         float log_sum) {
  __shared__ uint64_t shared[32];
  const uint64_t* from = buffers.part_top + static_cast<int64_t>(row) * buffers.parts * kMaxTopLogprobs;
  uint64_t previous = UINT64_MAX;
  for (int rank = 0; rank < count; ++rank) {
    uint64_t best = kNoCandidate;
    for (int i = threadIdx.x; i < buffers.parts * count; i += kThreads) {
      const uint64_t candidate = from[i / count * kMaxTopLogprobs + i % count];
      if (candidate < previous) best = max(best, candidate);
    }
    previous = BlockMax(best, shared);
    if (threadIdx.x == 0) {
      args.top[row * kMaxTopLogprobs + rank] = {CandidateId(previous),
                                                __fsub_rn(CandidateValue(previous), log_sum)};
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    FinishKernel(const __grid_constant__ SamplingArgs args, const __grid_constant__ SamplingBuffers buffers) {
  extern __shared__ float2 steps[];
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.x;
  const SampleRow target = args.rows[row];
  if (target.slot < 0) return;
  const RowSampler sampler(args, buffers, row, target);
  const uint64_t chosen =
      sampler.greedy ? sampler.best : RowBest(buffers.part_draw + row * buffers.parts, buffers.parts);
  const bool scored = target.target >= 0;
  const int32_t token = scored ? target.target : CandidateId(chosen);
  const bool reports = Reports(sampler.settings, target);
  float log_sum = 0.0f;
  if (reports) {
    const int64_t from = static_cast<int64_t>(row) * buffers.slices;
    log_sum = FoldSlices(buffers.slice_max + from, buffers.slice_sum + from, buffers.slices, steps);
  }
  if (args.top != nullptr) MergeTop(args, buffers, row, NumTop(sampler.settings, target), log_sum);
  if (threadIdx.x != 0) return;
  args.tokens[row] = token;
  args.logprobs[row] = reports ? __fsub_rn(args.logits[row * args.row_stride + token], log_sum) : 0.0f;
  if (scored) return;
  if (sampler.settings.penalised != 0)
    ++args.controls.occurrences[static_cast<int64_t>(target.slot) * args.vocab + token];
  if (row + 1 == args.num_rows || args.rows[row + 1].slot != target.slot)
    args.last_tokens[target.slot] = token;
}

__global__ void __launch_bounds__(kThreads)
    TakeBestKernel(uint64_t* best, const SampleRow* rows, int num_rows, int32_t* last_tokens,
                   int32_t* tokens) {
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= num_rows) return;
  const uint64_t candidate = best[row];
  best[row] = kNoCandidate;
  if (rows[row].slot < 0) return;
  tokens[row] = CandidateId(candidate);
  if (row + 1 == num_rows || rows[row + 1].slot != rows[row].slot) last_tokens[rows[row].slot] = tokens[row];
}

int32_t Parts(int32_t vocab) {
  return (vocab + kPart - 1) / kPart;
}

// Lays out the workspace; the largest alignment first.
SamplingBuffers MakeBuffers(void* workspace, int32_t rows, int32_t vocab, size_t* bytes) {
  SamplingBuffers buffers;
  buffers.parts = Parts(vocab);
  buffers.slices = (vocab + kVocabularySlice - 1) / kVocabularySlice;
  auto* at = static_cast<uint8_t*>(workspace);
  const auto take = [&]<class T>(T** array, int64_t count) {
    *array = reinterpret_cast<T*>(at);
    at += static_cast<int64_t>(rows) * count * static_cast<int64_t>(sizeof(T));
  };
  take(&buffers.part_best, buffers.parts);
  take(&buffers.part_draw, buffers.parts);
  take(&buffers.threshold, 1);
  take(&buffers.bucket_weights, int64_t{buffers.parts} * kSamplingBuckets);
  take(&buffers.part_top, int64_t{buffers.parts} * kMaxTopLogprobs);
  take(&buffers.bucket_counts, int64_t{buffers.parts} * kSamplingBuckets);
  take(&buffers.slice_max, buffers.slices);
  take(&buffers.slice_sum, buffers.slices);
  take(&buffers.slice_best, buffers.slices);
  *bytes = static_cast<size_t>(at - static_cast<uint8_t*>(workspace));
  return buffers;
}

}  // namespace

size_t SamplingWorkspaceBytes(int32_t max_rows, int32_t vocab) {
  size_t bytes;
  MakeBuffers(nullptr, max_rows, vocab, &bytes);
  return bytes;
}

cudaError_t LaunchSampling(const SamplingArgs& args, cudaStream_t stream) {
  if (args.vocab > kMaxSamplingVocabulary) return cudaErrorInvalidValue;
  size_t bytes;
  const SamplingBuffers buffers = MakeBuffers(args.workspace, args.num_rows, args.vocab, &bytes);
  const dim3 parts(buffers.parts, args.num_rows);
  cudaError_t error = args.top != nullptr ? LaunchControls(args, buffers.parts, stream) : cudaSuccess;
  if (error == cudaSuccess && args.top != nullptr)
    error = LaunchDependent(TopPartsKernel, parts, kThreads, 0, stream, args, buffers);
  if (error != cudaSuccess) return error;
  error = LaunchDependent(SliceStatsKernel, parts, kThreads, 0, stream, args, buffers);
  if (error != cudaSuccess) return error;
  error = LaunchSamplingFilter(args, buffers, stream);
  if (error != cudaSuccess) return error;
  error = LaunchDependent(DrawKernel, parts, kThreads, 0, stream, args, buffers);
  if (error != cudaSuccess) return error;
  return LaunchDependent(FinishKernel, dim3(args.num_rows), kThreads, buffers.slices * sizeof(float2), stream,
                         args, buffers);
}

cudaError_t LaunchTakeBest(uint64_t* best, const SampleRow* rows, int32_t num_rows, int32_t* last_tokens,
                           int32_t* tokens, cudaStream_t stream) {
  return LaunchDependent(TakeBestKernel, dim3((num_rows + kThreads - 1) / kThreads), kThreads, 0, stream,
                         best, rows, num_rows, last_tokens, tokens);
}

}  // namespace ridge::kernels::cuda
