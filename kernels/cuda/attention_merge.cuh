// Chunks of a tile that several blocks computed: how they leave them, and how they are folded in ascending
// order.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace ridge::kernels::cuda {

__device__ inline float* PartialOf(const AttentionArgs& args, int partial, int kv_head) {
  return args.partials +
         (static_cast<int64_t>(partial) * args.num_kv_heads + kv_head) * PartialFloats(args.head_dim);
}

// A warp's part of a partial: kTiles n-tiles of O from `first_column` on; m and l are the first warp's.
template <int kTiles>
__device__ inline void StorePartial(float* to, int head_dim, int num_virtual, int first_column,
                                    bool first_warp, const float (&max)[2], float sum0, float sum1,
                                    const FragmentC (&out)[kTiles], unsigned lane) {
  float* maxima = to + kAttentionSplitRows * head_dim;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int tile_row = static_cast<int>(lane / 4) + 8 * row;
    if (tile_row >= num_virtual) continue;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int column = first_column + i * 8 + static_cast<int>(lane % 4 * 2);
      if (column >= head_dim) continue;
      *reinterpret_cast<float2*>(to + tile_row * head_dim + column) =
          make_float2(out[i].x[2 * row], out[i].x[2 * row + 1]);
    }
    if (first_warp && lane % 4 == 0) {
      maxima[tile_row] = max[row];
      maxima[kAttentionSplitRows + tile_row] = row == 0 ? sum0 : sum1;
    }
  }
}

// True in the block that stores the tile's last partials; what the others stored is visible to it. All
// threads call it; `last` is shared memory.
__device__ inline bool IsLastItem(const AttentionArgs& args, const AttentionItem& item, int kv_head,
                                  int* last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* counter = args.counters + item.counter * args.num_kv_heads + kv_head;
    __threadfence();
    *last = atomicAdd(counter, 1) == item.num_items - 1;
    if (*last) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return *last;
}

// The fold over a tile's partials by all kThreads; a thread takes four columns of a row at a time. Partials
// are asked for some at a time, since a fold takes less than a load.
template <int kThreads>
__device__ inline void MergePartials(const AttentionArgs& args, const AttentionItem& item, int kv_head,
                                     float c) {
  constexpr int kLoads = 16;
  const unsigned d = args.head_dim, row_pieces = d / 4;
  const int64_t stride = args.num_kv_heads * PartialFloats(args.head_dim);
  const int count = item.num_partials;
  const float* partials = PartialOf(args, item.tile_partial, kv_head);
  for (unsigned i = threadIdx.x; i < item.num_virtual * row_pieces; i += kThreads) {
    const unsigned row = i / row_pieces, column = i % row_pieces * 4;
    const float* from = partials + row * d + column;
    const float* maxima = partials + kAttentionSplitRows * d + row;
    float4 out = __ldcg(reinterpret_cast<const float4*>(from));
    float max = __ldcg(maxima), sum = __ldcg(maxima + kAttentionSplitRows);
    for (int first = 1; first < count; first += kLoads) {
      float4 outs[kLoads];
      float maxs[kLoads], sums[kLoads];
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int64_t at = min(first + j, count - 1) * stride;
        outs[j] = __ldcg(reinterpret_cast<const float4*>(from + at));
        maxs[j] = __ldcg(maxima + at);
        sums[j] = __ldcg(maxima + at + kAttentionSplitRows);
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        if (first + j >= count || maxs[j] == -INFINITY) continue;
        const FoldFactors factors = FoldRow(max, maxs[j], c);
        max = factors.max;
        sum = FoldValue(sum, sums[j], factors);
        out = make_float4(FoldValue(out.x, outs[j].x, factors), FoldValue(out.y, outs[j].y, factors),
                          FoldValue(out.z, outs[j].z, factors), FoldValue(out.w, outs[j].w, factors));
      }
    }
    const __half2 pair[2] = {SaturateToHalf2(__fdiv_rn(out.x, sum), __fdiv_rn(out.y, sum), args.saturations),
                             SaturateToHalf2(__fdiv_rn(out.z, sum), __fdiv_rn(out.w, sum), args.saturations)};
    Half* to = args.out + RowOffset(args, item, item.first_virtual + row, kv_head) + column;
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pair);
  }
}

}  // namespace ridge::kernels::cuda
