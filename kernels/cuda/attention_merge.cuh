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
    if (row == 1 && num_virtual <= 8) break;
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

// Counts an item of a tile as done and returns how many were before. One thread calls it, behind a barrier
// that its block's stores lie before; what the items before stored is then visible to whoever synchronises
// with it.
__device__ inline int CountItem(const AttentionArgs& args, const AttentionItem& item, int kv_head) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(args.counters + item.counter * args.num_kv_heads + kv_head)
               : "memory");
  return before;
}

// Whether that makes the item its tile's last; the counter is then as it was before the first.
__device__ inline bool IsLastItem(const AttentionArgs& args, const AttentionItem& item, int kv_head,
                                  int before) {
  if (before != item.num_items - 1) return false;
  args.counters[item.counter * args.num_kv_heads + kv_head] = 0;
  return true;
}

// What a partial gives to the fold of a row: O becomes fma(O, folded, its O * chunk), l becomes fma(l,
// folded, sum). Left out where `folded` is below zero.
struct __align__(16) MergeFactors {
  float folded, chunk, sum, padding;
};

// Those of a row and of this lane's partial, one of kLoads; max: of the partials before them, and then of
// all.
template <int kLoads>
__device__ inline MergeFactors MakeMergeFactors(float chunk_max, float chunk_sum, bool is_partial, float c,
                                                float* max) {
  const int lane = threadIdx.x % kLoads;
  float highest = fmaxf(*max, chunk_max);  // up to this lane's
#pragma unroll
  for (int distance = 1; distance < kLoads; distance *= 2)
    highest = fmaxf(highest, __shfl_up_sync(0xFFFFFFFFu, highest, distance, kLoads));
  const float before = __shfl_up_sync(0xFFFFFFFFu, highest, 1, kLoads);
  const FoldFactors factors = FoldRow(lane == 0 ? *max : before, chunk_max, c);
  *max = __shfl_sync(0xFFFFFFFFu, highest, kLoads - 1, kLoads);
  return {is_partial && chunk_max != -INFINITY ? factors.folded : -1.0f, factors.chunk,
          __fmul_rn(chunk_sum, factors.chunk), 0.0f};
}

// Eight neighbouring columns of a row.
struct MergeColumns {
  float4 x[2];

  __device__ void Load(const float* from) {
    x[0] = __ldcg(reinterpret_cast<const float4*>(from));
    x[1] = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  }

  __device__ void Fold(const MergeColumns& chunk, const MergeFactors& f) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i].x = __fmaf_rn(x[i].x, f.folded, __fmul_rn(chunk.x[i].x, f.chunk));
      x[i].y = __fmaf_rn(x[i].y, f.folded, __fmul_rn(chunk.x[i].y, f.chunk));
      x[i].z = __fmaf_rn(x[i].z, f.folded, __fmul_rn(chunk.x[i].z, f.chunk));
      x[i].w = __fmaf_rn(x[i].w, f.folded, __fmul_rn(chunk.x[i].w, f.chunk));
    }
  }

  // O / l.
  __device__ void Store(float sum, unsigned long long* saturations, Half* to) const {
    __half2 values[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[2 * i] = SaturateToHalf2(__fdiv_rn(x[i].x, sum), __fdiv_rn(x[i].y, sum), saturations);
      values[2 * i + 1] = SaturateToHalf2(__fdiv_rn(x[i].z, sum), __fdiv_rn(x[i].w, sum), saturations);
    }
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
  }
};

// The fold over a tile's partials by all warps of the block, each for itself: a half warp takes a row, a lane
// eight columns of it. Nothing else may run while a step's last tile is folded, so kLoads partials are asked
// for at once and their factors are computed by a lane each. `scratch`: 32 a warp, in shared memory.
template <int kWarps, int kLoads = 8>
__device__ inline void MergePartials(const AttentionArgs& args, const AttentionItem& item, int kv_head,
                                     float c, MergeFactors* scratch) {
  constexpr int kRowLanes = 16, kLaneColumns = 8, kRowColumns = kRowLanes * kLaneColumns;
  static_assert(kRowLanes % kLoads == 0 && 2 * kRowLanes == kWarpThreads);
  const int warp = threadIdx.x / kWarpThreads, half = threadIdx.x / kRowLanes % 2,
            lane = threadIdx.x % kRowLanes, own = lane % kLoads;
  const int d = args.head_dim, count = item.num_partials;
  const int64_t stride = args.num_kv_heads * PartialFloats(d);
  const float* partials = PartialOf(args, item.tile_partial, kv_head);
  MergeFactors* row_factors = scratch + threadIdx.x - lane;
#pragma unroll 1
  for (int first_row = 2 * warp; first_row < item.num_virtual; first_row += 2 * kWarps) {
    const int row = min(first_row + half, item.num_virtual - 1);
    const float* maxima = partials + kAttentionSplitRows * d + row;
#pragma unroll 1
    for (int column = lane * kLaneColumns; column - lane * kLaneColumns < d; column += kRowColumns) {
      const float* from = partials + row * d + min(column, d - kLaneColumns);
      MergeColumns out;
      out.Load(from);
      float max = __ldcg(maxima), sum = __ldcg(maxima + kAttentionSplitRows);
#pragma unroll 1
      for (int first = 1; first < count; first += kLoads) {
        const int partials_left = count - first;
        const float* own_maxima = maxima + (first + min(own, partials_left - 1)) * stride;
        const float chunk_max = __ldcg(own_maxima), chunk_sum = __ldcg(own_maxima + kAttentionSplitRows);
        MergeColumns chunks[kLoads];
        const float* chunk = from + first * stride;
#pragma unroll
        for (int j = 0; j < kLoads; ++j, chunk += stride) {
          if (j < partials_left) chunks[j].Load(chunk);
        }
        __syncwarp();  // nobody reads the factors before these any more
        row_factors[lane] = MakeMergeFactors<kLoads>(chunk_max, chunk_sum, own < partials_left, c, &max);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          if (j >= partials_left) break;
          const MergeFactors factors = row_factors[j];
          if (factors.folded < 0.0f) continue;
          sum = __fmaf_rn(sum, factors.folded, factors.sum);
          out.Fold(chunks[j], factors);
        }
      }
      if (first_row + half != row || column >= d) continue;
      out.Store(sum, args.saturations,
                args.out + RowOffset(args, item, item.first_virtual + row, kv_head) + column);
    }
  }
}

}  // namespace ridge::kernels::cuda
