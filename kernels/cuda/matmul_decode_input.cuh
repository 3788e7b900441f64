// How x comes to the decode matmul's shared memory (matmul_decode.cu): rows as they are, slice by slice, rows
// that are normed on the way, or attention's chunks that are folded on the way.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_few_rows.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/rms_norm.cuh"

namespace ridge::kernels::cuda {

// K steps that are multiplied without a look at anything else, and their columns: a slice of x.
inline constexpr int kBlockSteps = 16;
inline constexpr int kSliceDepth = kBlockSteps * kTileDepth;
inline constexpr int kSliceStride = kSliceDepth + kRowPad;

// Puts the normed rows into x [m][k + kRowPad]: each half of a warp takes one group of 256 columns of one
// row.
__device__ inline void NormRows(const MatmulArgs& args, Half* x, float* sums) {
  const int groups = NormGroups(args.k), pair = threadIdx.x / kVirtualLanes,
            lane = threadIdx.x % kVirtualLanes;
  const int row = pair / groups, column = pair % groups * kNormGroup + lane;
  const int count = row < args.m ? min(kNormGroup, args.k - column + lane) / kVirtualLanes : 0;
  const float* from = args.norm_x + static_cast<int64_t>(row) * args.k + column;
  constexpr int kValues = kNormGroup / kVirtualLanes;
  float values[kValues], weights[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    values[i] = i < count ? from[i * kVirtualLanes] : 0.0f;
    weights[i] = i < count ? args.norm_weight[column + i * kVirtualLanes] : 0.0f;
  }
  const float sum = NormHeldSum(values);
  if (lane == 0 && count > 0) sums[pair] = sum;
  __syncthreads();
  if (count > 0) {
    const float scale = NormScale(sums + row * groups, args.k, args.norm_eps);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = NormValue(values[i], scale, weights[i]);
      largest = fmaxf(largest, fabsf(values[i]));
    }
    Half* to = x + row * (args.k + kRowPad) + column;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float value = fminf(fmaxf(values[i], -kHalfMax), kHalfMax);
      if (i < count) to[i * kVirtualLanes] = __half_as_ushort(__float2half_rn(value));
    }
    if (largest > kHalfMax && blockIdx.x == 0) {  // every block has the same values: one of them counts
      for (int i = 0; i < kValues; ++i) {
        if (fabsf(values[i]) > kHalfMax) atomicAdd(args.saturations, 1ull);
      }
    }
  }
  __syncthreads();
}

// Columns [begin, begin + count) of all rows to a slice [m][kSliceStride], by one warp.
__device__ inline void CopySlice(const MatmulArgs& args, int begin, int count, uint32_t slice, int lane) {
  if (lane * 8 < count) {
    for (int row = 0; row < args.m; ++row) {
      CopyAsync16(slice + (row * kSliceStride + lane * 8) * 2,
                  args.x + static_cast<int64_t>(row) * args.k + begin + lane * 8);
    }
  }
  CommitCopies();
}

// A slice of attention's output, columns [begin, begin + count): where a lane finds the chunks. Looked up
// before the kernel waits.
struct FoldPlaces {
  const float* values[2];  // of O: 4 columns each, kWarpThreads * 4 apart; null beyond the slice
  // m of chunk lane % kMaxUnmerged and the slice's head lane / kMaxUnmerged (l is kAttentionSplitRows behind
  // it); null where there is none.
  const float* maximum;
  int num_chunks;
  int64_t stride;  // from chunk to chunk

  FoldPlaces() = default;
  __device__ FoldPlaces(const UnmergedAttention& from, int begin, int count, int lane) {
    const int d = from.head_dim, group = from.num_heads / from.num_kv_heads;
    num_chunks = from.items->num_partials;
    stride = from.num_kv_heads * PartialFloats(d);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = (i * kWarpThreads + lane) * 4, head = (begin + column) / d;
      values[i] = column < count ? from.partials + head / group * PartialFloats(d) + head % group * d +
                                       (begin + column) % d
                                 : nullptr;
    }
    const int head = begin / d + lane / kMaxUnmerged, chunk = lane % kMaxUnmerged;
    const bool valid = lane / kMaxUnmerged * d < count && chunk < num_chunks;
    maximum = valid ? from.partials + head / group * PartialFloats(d) + kAttentionSplitRows * d +
                          head % group + chunk * stride
                    : nullptr;
  }
};

// Folds the slice's chunks, by one warp. `chunks`: room for their O.
__device__ inline void FoldSlice(const FoldPlaces& places, int d, int count, Half* slice, float* chunks,
                                 int lane, unsigned long long* saturations) {
  constexpr int kPieces = kSliceDepth / 4;  // of 16 bytes
  const int num_chunks = places.num_chunks;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (places.values[i] == nullptr) continue;
    const uint32_t to = SharedAddress(chunks + (i * kWarpThreads + lane) * 4);
#pragma unroll 1
    for (int chunk = 0; chunk < num_chunks; ++chunk)
      CopyAsync16(to + chunk * kSliceDepth * 4, places.values[i] + chunk * places.stride);
  }
  CommitCopies();
  float max = 0.0f, sum = 0.0f;
  if (places.maximum != nullptr) {
    max = __ldcg(places.maximum);
    sum = __ldcg(places.maximum + kAttentionSplitRows);
  }
  WaitForCopies<0>();
  __syncwarp();
  const float c = ScoreScale(d);
  const int first = lane * 8 / d * kMaxUnmerged;  // the lane with the m and l of this lane's head
  const float4* values = reinterpret_cast<const float4*>(chunks + lane * 8);
  float4 low = values[0], high = values[1];
  float folded_max = __shfl_sync(0xFFFFFFFFu, max, first), folded_sum = __shfl_sync(0xFFFFFFFFu, sum, first);
#pragma unroll 1
  for (int i = 1; i < num_chunks; ++i) {
    const float chunk_max = __shfl_sync(0xFFFFFFFFu, max, first + i);
    const float chunk_sum = __shfl_sync(0xFFFFFFFFu, sum, first + i);
    const float4 chunk_low = values[i * kPieces], chunk_high = values[i * kPieces + 1];
    const FoldFactors factors = FoldRow(folded_max, chunk_max, c);
    folded_max = factors.max;
    folded_sum = FoldValue(folded_sum, chunk_sum, factors);
    low = make_float4(FoldValue(low.x, chunk_low.x, factors), FoldValue(low.y, chunk_low.y, factors),
                      FoldValue(low.z, chunk_low.z, factors), FoldValue(low.w, chunk_low.w, factors));
    high = make_float4(FoldValue(high.x, chunk_high.x, factors), FoldValue(high.y, chunk_high.y, factors),
                       FoldValue(high.z, chunk_high.z, factors), FoldValue(high.w, chunk_high.w, factors));
  }
  if (lane * 8 >= count) return;
  const float out[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint4 packed;
  __half2* pairs = reinterpret_cast<__half2*>(&packed);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = SaturateToHalf2(__fdiv_rn(out[2 * i], folded_sum), __fdiv_rn(out[2 * i + 1], folded_sum),
                               saturations);
  }
  *reinterpret_cast<uint4*>(slice + lane * 8) = packed;
}

}  // namespace ridge::kernels::cuda
