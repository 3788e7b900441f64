// top_k and top_p without a sort. Candidates are ordered by (logit, lowest id); every filter keeps a prefix
// of that order, so that what is kept is said by the last candidate that is: threshold[row]. Both filters are
// one rule: a candidate is kept while the measure of those before it is less than a limit, where top_k
// measures 1 and has the limit k, top_p measures floor(e^(x - max x) * 2^40) and has the limit floor(top_p *
// total).
//
// Two kernels. The first counts and weighs the candidates that min_p leaves in 256 buckets by their distance
// from the largest. The second finds the bucket where the limit is crossed, gathers its candidates and finds
// the last kept one by a radix selection over the bits in which they differ, 8 at a time. A bucket that is
// too large to gather is read again for each digit. Sums are of integers: their order is free.
//
// Geometry: 256 threads a part of 4,096 ids, then 1,024 threads a row. Shared memory: 3 KiB, then 38 KiB.
// Bytes: the row two to four times (L2). Reference: reference::KeptIds (the same ids).
#include "kernels/cuda/sampling_filter.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kSelectThreads = 1024;
constexpr int kGathered = 4096;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

// Sums of weights <= 2^40 of at most kSamplingPart = 2^12 candidates a bucket, in 32-bit parts, which shared
// memory adds by itself: bits 0 .. 19, bits 20 .. 39, and how many are 2^40.
struct BucketSums {
  uint32_t counts[kSamplingBuckets];
  uint32_t low[kSamplingBuckets];
  uint32_t high[kSamplingBuckets];
  uint32_t full;  // of bucket 0
};
static_assert(kSamplingPart == 1 << 12);

__global__ void __launch_bounds__(kSamplingThreads)
    BucketKernel(const __grid_constant__ SamplingArgs args, const __grid_constant__ SamplingBuffers buffers) {
  __shared__ BucketSums sums;
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.y, part = blockIdx.x;
  const SampleRow target = args.rows[row];
  if (target.slot < 0) return;
  const RowSampler sampler(args, buffers, row, target);
  if (!sampler.Filters()) return;
  static_assert(kSamplingThreads == kSamplingBuckets);
  const int own = threadIdx.x;
  sums.counts[own] = sums.low[own] = sums.high[own] = 0;
  if (own == 0) sums.full = 0;
  __syncthreads();
  const bool weigh = sampler.settings.top_p < 1.0f;
  const float* logits = RowLogits(args, row, target);
  const int end = min((part + 1) * kSamplingPart, args.vocab);
  uint32_t in_last = 0;  // where most candidates are
#pragma unroll 4
  for (int id = part * kSamplingPart + own; id < end; id += kSamplingThreads) {
    const float x = sampler.X(logits[id]);
    if (!(x >= sampler.least_x)) continue;
    const int bucket = sampler.BucketOf(x);
    if (bucket == kSamplingBuckets - 1) {
      ++in_last;  // weighs nothing
      continue;
    }
    atomicAdd(&sums.counts[bucket], 1u);
    if (!weigh) continue;
    const uint64_t weight = sampler.Weight(x);
    if (weight == uint64_t{1} << 40) {
      atomicAdd(&sums.full, 1u);
    } else {
      atomicAdd(&sums.low[bucket], static_cast<uint32_t>(weight) & 0xFFFFF);
      atomicAdd(&sums.high[bucket], static_cast<uint32_t>(weight >> 20));
    }
  }
  if (in_last != 0) atomicAdd(&sums.counts[kSamplingBuckets - 1], in_last);
  __syncthreads();
  const int64_t to = (static_cast<int64_t>(row) * buffers.parts + part) * kSamplingBuckets + own;
  buffers.bucket_weights[to] =
      (own == 0 ? uint64_t{sums.full} << 40 : 0) + (uint64_t{sums.high[own]} << 20) + sums.low[own];
  buffers.bucket_counts[to] = sums.counts[own];
}

enum class Measure { kCount, kWeight };

struct SelectShared {
  unsigned long long weights[kSamplingBuckets];
  unsigned long long counts[kSamplingBuckets];
  unsigned long long digits[kDigits];
  uint64_t gathered[kGathered];
  int num_gathered;      // may exceed kGathered: then they were not all kept
  uint64_t first, last;  // of the bucket's candidates
  // Of Cross.
  int crossing;
  uint64_t before;
};

// One row's selection, by one block. All methods are called by all threads.
class Selection {
 public:
  __device__ Selection(const SamplingArgs& args, const SamplingBuffers& buffers, int row, const float* logits,
                       const RowSampler& sampler, SelectShared* shared)
      : args_(args), buffers_(buffers), row_(row), logits_(logits), sampler_(sampler), shared_(*shared) {}

  __device__ uint64_t Run() {
    SumBuckets();
    uint64_t threshold = kNoCandidate;
    const uint64_t top_k = sampler_.settings.top_k > 0 ? sampler_.settings.top_k : UINT64_MAX;
    int last_bucket = kSamplingBuckets - 1;  // with candidates that top_k keeps
    if (top_k < Total(shared_.counts)) {
      const uint64_t before = Cross(shared_.counts, false, top_k);
      last_bucket = shared_.crossing;
      threshold = LastKept(last_bucket, Measure::kCount, before, top_k, kNoCandidate);
    }
    if (sampler_.settings.top_p < 1.0f) threshold = TopP(last_bucket, threshold);
    return threshold;
  }

 private:
  __device__ uint64_t TopP(int last_bucket, uint64_t top_k_threshold) {
    // What top_k leaves of the weight of its last bucket and of those beyond.
    if (top_k_threshold != kNoCandidate) {
      __syncthreads();
      for (int i = last_bucket + static_cast<int>(threadIdx.x); i < kSamplingBuckets; i += kSelectThreads)
        shared_.weights[i] = 0;
      __syncthreads();
      ForEach(last_bucket, [&](uint64_t candidate) {
        if (candidate >= top_k_threshold)
          Add(&shared_.weights[last_bucket], MeasureOf(Measure::kWeight, candidate));
      });
      __syncthreads();
    }
    const uint64_t total = Total(shared_.weights);
    const auto limit = static_cast<uint64_t>(
        __dmul_rn(static_cast<double>(sampler_.settings.top_p), static_cast<double>(total)));
    if (limit == 0) return sampler_.best;
    const uint64_t before = Cross(shared_.weights, false, limit);
    return LastKept(shared_.crossing, Measure::kWeight, before, limit, top_k_threshold);
  }

  // Sums the parts' buckets.
  __device__ void SumBuckets() {
    const int64_t from = static_cast<int64_t>(row_) * buffers_.parts * kSamplingBuckets;
    const int bucket = threadIdx.x % kSamplingBuckets, first_part = threadIdx.x / kSamplingBuckets;
    if (threadIdx.x < kSamplingBuckets) shared_.weights[bucket] = shared_.counts[bucket] = 0;
    __syncthreads();
    unsigned long long weight = 0, count = 0;
#pragma unroll 4
    for (int part = first_part; part < buffers_.parts; part += kSelectThreads / kSamplingBuckets) {
      weight += buffers_.bucket_weights[from + part * kSamplingBuckets + bucket];
      count += buffers_.bucket_counts[from + part * kSamplingBuckets + bucket];
    }
    atomicAdd(&shared_.weights[bucket], weight);
    atomicAdd(&shared_.counts[bucket], count);
    __syncthreads();
  }

  // Sum of 256 measures; valid in all threads.
  __device__ uint64_t Total(const unsigned long long* measures) const {
    uint64_t sum = 0;
    for (int i = threadIdx.x % 32; i < kSamplingBuckets; i += 32) sum += measures[i];
#pragma unroll
    for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    return sum;
  }

  // Goes through 256 measures, in descending order where asked, until their sum reaches `limit`: leaves the
  // place in shared_.crossing and returns the sum before it. The sum of all is no less than the limit.
  __device__ uint64_t Cross(const unsigned long long* measures, bool descending, uint64_t limit) {
    __syncthreads();
    if (threadIdx.x < 32) {
      constexpr int kEach = kDigits / 32;
      const auto index = [&](int i) { return descending ? kDigits - 1 - i : i; };
      uint64_t own = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) own += measures[index(threadIdx.x * kEach + i)];
      uint64_t until = own;  // inclusive sum over the lanes
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const uint64_t other = __shfl_up_sync(0xFFFFFFFFu, until, offset);
        if (static_cast<int>(threadIdx.x) >= offset) until += other;
      }
      const uint32_t reached = __ballot_sync(0xFFFFFFFFu, until >= limit);
      if (static_cast<int>(threadIdx.x) == __ffs(static_cast<int>(reached)) - 1) {
        uint64_t before = until - own;
        int i = threadIdx.x * kEach;
        while (before + measures[index(i)] < limit) before += measures[index(i++)];
        shared_.crossing = index(i);
        shared_.before = before;
      }
    }
    __syncthreads();
    return shared_.before;
  }

  static __device__ void Add(unsigned long long* sum, uint64_t measure) {
    atomicAdd(sum, static_cast<unsigned long long>(measure));
  }

  __device__ uint64_t MeasureOf(Measure measure, uint64_t candidate) const {
    return measure == Measure::kCount ? 1 : sampler_.Weight(sampler_.X(CandidateValue(candidate)));
  }

  // Calls task(candidate) for the candidates of a bucket, in any order. Gathers them first where they are
  // not.
  template <class Task>
  __device__ void ForEach(int bucket, const Task& task) {
    if (gathered_bucket_ != bucket) Gather(bucket);
    if (shared_.num_gathered <= kGathered) {
      for (int i = threadIdx.x; i < shared_.num_gathered; i += kSelectThreads) task(shared_.gathered[i]);
    } else {
      Scan(bucket, task);
    }
  }

  __device__ void Gather(int bucket) {
    __syncthreads();
    if (threadIdx.x == 0) shared_.num_gathered = 0;
    gathered_bucket_ = bucket;
    __syncthreads();
    // One that cannot fit is not tried.
    if (shared_.counts[bucket] > kGathered) {
      if (threadIdx.x == 0) shared_.num_gathered = kGathered + 1;
    } else {
      Scan(bucket,
           [&](uint64_t candidate) { shared_.gathered[atomicAdd(&shared_.num_gathered, 1)] = candidate; });
    }
    __syncthreads();
  }

  // Reads the row; a warp takes a slice at a time and leaves out those whose largest is in a later bucket.
  template <class Task>
  __device__ void Scan(int bucket, const Task& task) const {
    const float* slice_best = buffers_.slice_best + static_cast<int64_t>(row_) * buffers_.slices;
    // Most candidates are ruled out by bounds of the bucket's logits that need no division; the margin is
    // wider than what rounding makes of them.
    const float t = sampler_.settings.temperature;
    const float margin = 1e-5f * (fabsf(sampler_.max_x) + kSamplingBuckets / 8) * t;
    const float above = (sampler_.max_x - static_cast<float>(bucket) / 8.0f) * t + margin;
    const float below = bucket == kSamplingBuckets - 1
                            ? -INFINITY
                            : (sampler_.max_x - static_cast<float>(bucket + 1) / 8.0f) * t - margin;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int slice = warp; slice < buffers_.slices; slice += kSelectThreads / 32) {
      if (slice_best[slice] < below) continue;
      const int end = min((slice + 1) * kVocabularySlice, args_.vocab);
#pragma unroll
      for (int i = 0; i < kVocabularySlice / 32; ++i) {
        const int id = slice * kVocabularySlice + i * 32 + lane;
        if (id >= end) continue;
        const float logit = logits_[id];
        if (logit < below || logit > above) continue;
        const float x = sampler_.X(logit);
        if (x >= sampler_.least_x && sampler_.BucketOf(x) == bucket) task(PackCandidate(logit, id));
      }
    }
  }

  // The largest and the smallest candidate of a bucket.
  __device__ void FindRange(int bucket) {
    uint64_t first = kNoCandidate, last = UINT64_MAX;
    ForEach(bucket, [&](uint64_t candidate) {
      first = max(first, candidate);
      last = min(last, candidate);
    });
    first = WarpMax(first);
    last = ~WarpMax(~last);
    __syncthreads();
    if (threadIdx.x == 0) {
      shared_.first = kNoCandidate;
      shared_.last = UINT64_MAX;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
      atomicMax(reinterpret_cast<unsigned long long*>(&shared_.first),
                static_cast<unsigned long long>(first));
      atomicMin(reinterpret_cast<unsigned long long*>(&shared_.last), static_cast<unsigned long long>(last));
    }
    __syncthreads();
  }

  // The last candidate of a bucket that is kept, of those from `floor` on, where `before` is the measure of
  // the buckets before it.
  __device__ uint64_t LastKept(int bucket, Measure measure, uint64_t before, uint64_t limit, uint64_t floor) {
    FindRange(bucket);
    int bits =
        64 - __clzll(static_cast<long long>(shared_.first ^ shared_.last));  // that are not decided yet
    uint64_t prefix = bits == 64 ? 0 : shared_.first >> bits;
    while (bits > 0) {
      const int width = min(bits, kDigitBits);
      const int shift = bits - width;
      __syncthreads();
      for (int i = threadIdx.x; i < kDigits; i += kSelectThreads) shared_.digits[i] = 0;
      __syncthreads();
      ForEach(bucket, [&](uint64_t candidate) {
        // In two steps, since a shift by 64 is not defined.
        if (candidate < floor || (candidate >> shift >> width) != prefix) return;
        const int digit = static_cast<int>(candidate >> shift & ((1u << width) - 1));
        Add(&shared_.digits[digit], MeasureOf(measure, candidate));
      });
      before += Cross(shared_.digits, true, limit - before);
      prefix = prefix << width | static_cast<uint64_t>(shared_.crossing);
      bits = shift;
    }
    return prefix;
  }

  const SamplingArgs& args_;
  const SamplingBuffers& buffers_;
  const int row_;
  const float* const logits_;
  const RowSampler& sampler_;
  SelectShared& shared_;
  int gathered_bucket_ = -1;
};

__global__ void __launch_bounds__(kSelectThreads)
    SelectKernel(const __grid_constant__ SamplingArgs args, const __grid_constant__ SamplingBuffers buffers) {
  __shared__ SelectShared shared;
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.x;
  const SampleRow target = args.rows[row];
  if (target.slot < 0) return;
  const RowSampler sampler(args, buffers, row, target);
  if (!sampler.Filters()) return;
  const uint64_t threshold =
      Selection(args, buffers, row, RowLogits(args, row, target), sampler, &shared).Run();
  if (threadIdx.x == 0) buffers.threshold[row] = threshold;
}

}  // namespace

cudaError_t LaunchSamplingFilter(const SamplingArgs& args, const SamplingBuffers& buffers,
                                 cudaStream_t stream) {
  const cudaError_t error = LaunchDependent(BucketKernel, dim3(buffers.parts, args.num_rows),
                                            kSamplingThreads, 0, stream, args, buffers);
  if (error != cudaSuccess) return error;
  return LaunchDependent(SelectKernel, dim3(args.num_rows), kSelectThreads, 0, stream, args, buffers);
}

}  // namespace ridge::kernels::cuda
