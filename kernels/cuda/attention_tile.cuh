// What the attention kernels share, so that they give the same bits: the numerics of a tile, of a chunk and
// of the fold, and the layout of tiles in shared memory. Fragments are those of mma.cuh, g = lane / 4, t =
// lane % 4: a lane holds values of the tile's virtual rows g and g + 8, called its rows 0 and 1.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rounding.cuh"
#include "kernels/math.h"
#include "kernels/order.h"

namespace ridge::kernels::cuda {

// Bytes of the unit in which rows are copied and swizzled.
inline constexpr int kPieceBytes = 16;
inline constexpr int kPieceHalves = kPieceBytes / 2;

// Where 16-byte piece `piece` of row `row` stands in a tile of rows of kPieces pieces, in bytes: any 8
// neighbouring rows have the same piece in different banks.
template <unsigned kPieces>
__device__ inline uint32_t SwizzledOffset(unsigned row, unsigned piece) {
  static_assert(kPieces == 2 || kPieces == 4 || kPieces % 8 == 0);
  constexpr unsigned kRowsPerLine = kPieces >= 8 ? 1 : 8 / kPieces;  // rows in 128 bytes
  constexpr unsigned kMask = kPieces >= 8 ? 7 : kPieces - 1;
  return (row * kPieces + (piece ^ (row / kRowsPerLine & kMask))) * kPieceBytes;
}

// Where a lane's copies of a tile go, of which the warp copies 32 neighbouring pieces a turn: `first` is the
// shared address of the lane's piece of turn 0. `turn` is known at compile time, and the tile begins at a
// multiple of 128.
template <unsigned kPieces>
__device__ inline uint32_t SwizzledTurn(uint32_t first, unsigned turn) {
  constexpr unsigned kTurnRows = 32 / kPieces, kRowsPerLine = kPieces >= 8 ? 1 : 8 / kPieces;
  constexpr unsigned kMask = kPieces >= 8 ? 7 : kPieces - 1;
  return (first ^ (turn * kTurnRows / kRowsPerLine & kMask) * kPieceBytes) + turn * 32 * kPieceBytes;
}

// B operands of S = Q K^T: keys first_key .. + 15, columns 16 step .. + 15 of a K tile; n-tile 0 and 1 hold 8
// keys each.
template <unsigned kPieces>
__device__ inline void LoadKeys(FragmentB (&b)[2], uint32_t tile, unsigned first_key, unsigned step,
                                unsigned lane) {
  const unsigned key = first_key + lane % 8 + lane / 16 * 8;
  uint32_t x[4];
  LoadMatrices(x, tile + SwizzledOffset<kPieces>(key, 2 * step + lane / 8 % 2));
  b[0] = {{x[0], x[1]}};
  b[1] = {{x[2], x[3]}};
}

// B operands of O += P V: keys first_key .. + 15, columns 16 pair .. + 15 of a V tile; n-tile 0 and 1 hold 8
// columns each.
template <unsigned kPieces>
__device__ inline void LoadValues(FragmentB (&b)[2], uint32_t tile, unsigned first_key, unsigned pair,
                                  unsigned lane) {
  const unsigned key = first_key + lane % 16;
  uint32_t x[4];
  LoadMatricesTransposed(x, tile + SwizzledOffset<kPieces>(key, 2 * pair + lane / 16));
  b[0] = {{x[0], x[1]}};
  b[1] = {{x[2], x[3]}};
}

// A partial, what a block leaves of one chunk (or of its first ones, folded) for another to fold: O
// [16][head_dim], m [16], l [16], fp32, for the 16 virtual rows of a tile; those of all KV heads stand
// together.
__host__ __device__ constexpr int64_t PartialFloats(int head_dim) {
  return kAttentionSplitRows * (head_dim + 2);
}

// The scale that turns S into the exponent of 2.
__device__ inline float ScoreScale(int head_dim) {
  return __fdiv_rn(kLog2E, std::sqrt(static_cast<float>(head_dim)));
}

// 2^x for x <= 0 (or a rounding error above), or minus infinity, of each: the bits of Exp2, except that what
// lies below 2^-64, which fp16 cannot tell from 0, stays above 0. Step by step, so that none waits for
// another's.
template <int kCount>
__device__ inline void Exp2ForHalf(float (&x)[kCount]) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's last place is 1
  constexpr Polynomial7 kPolynomial = Exp2Polynomial();
  float shifted[kCount], value[kCount];
#pragma unroll
  for (float& y : x) y = fmaxf(y, -64.0f);
#pragma unroll
  for (int i = 0; i < kCount; ++i) shifted[i] = __fadd_rn(x[i], kRound);
#pragma unroll
  for (int i = 0; i < kCount; ++i) value[i] = __fsub_rn(shifted[i], kRound);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = __fsub_rn(x[i], value[i]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) value[i] = kPolynomial.terms[6];
#pragma unroll
  for (int term = 5; term >= 0; --term) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = __fmaf_rn(value[i], x[i], kPolynomial.terms[term]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    x[i] =
        __int_as_float(__float_as_int(__fmaf_rn(value[i], x[i], 1.0f)) + (__float_as_int(shifted[i]) << 23));
}

__device__ inline float Exp2ForHalf(float x) {
  float values[1] = {x};
  Exp2ForHalf(values);
  return values[0];
}

// 2^(from c - to c), the factor of what was summed relative to maximum `from` where the maximum is now `to`.
__device__ inline float RescaleFactor(float from, float to, float c) {
  return Exp2(__fmaf_rn(from, c, -__fmul_rn(to, c)));
}

// What is added to a row's scaled scores. A row that has seen no key yet has max = -inf and only masked
// scores.
__device__ inline float ScoreOffset(float max, float c) {
  const float offset = -__fmul_rn(max, c);  // apart, so that the choice is no branch
  return max == -INFINITY ? 0.0f : offset;
}

__device__ inline uint32_t PackHalves(float low, float high) {
  const __half2 halves = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&halves);
}

// P of two neighbouring keys of a row.
__device__ inline uint32_t Probabilities(float score0, float score1, float max, float c) {
  const float offset = ScoreOffset(max, c);
  return PackHalves(Exp2ForHalf(__fmaf_rn(score0, c, offset)), Exp2ForHalf(__fmaf_rn(score1, c, offset)));
}

// The P operand of keys 16 s .. 16 s + 15 from the scores of n-tiles 2 s and 2 s + 1. Without `two_rows` that
// of a tile of at most 8 virtual rows.
__device__ inline FragmentA ProbabilityFragment(const FragmentC& low, const FragmentC& high,
                                                const float (&max)[2], float c, bool two_rows = true) {
  FragmentA p = {};
  p.x[0] = Probabilities(low.x[0], low.x[1], max[0], c);
  p.x[2] = Probabilities(high.x[0], high.x[1], max[0], c);
  if (two_rows) {
    p.x[1] = Probabilities(low.x[2], low.x[3], max[1], c);
    p.x[3] = Probabilities(high.x[2], high.x[3], max[1], c);
  }
  return p;
}

// A column of ones for l, as a B operand.
__device__ inline FragmentB Ones() {
  return {{0x3C003C00u, 0x3C003C00u}};
}

// Scores of 8 keys from `first_key` on: minus infinity where the key lies behind the row.
__device__ inline void MaskScores(FragmentC& scores, int first_key, const int (&positions)[2],
                                  unsigned lane) {
  const int key = first_key + static_cast<int>(lane % 4 * 2);
  if (key > positions[0]) scores.x[0] = -INFINITY;
  if (key + 1 > positions[0]) scores.x[1] = -INFINITY;
  if (key > positions[1]) scores.x[2] = -INFINITY;
  if (key + 1 > positions[1]) scores.x[3] = -INFINITY;
}

// The largest over the four lanes that share a row.
__device__ inline float RowMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}

// The largest of a row's scores.
template <int kTiles>
__device__ inline float MaxScore(const FragmentC (&scores)[kTiles], int row) {
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) max = fmaxf(max, fmaxf(scores[i].x[2 * row], scores[i].x[2 * row + 1]));
  return RowMax(max);
}

// What a warp knows of its 16 rows after some keys: the maximum of S, the sum of P and the sum of P V over
// kTiles n-tiles of 8 columns.
template <int kTiles>
struct SoftmaxState {
  float max[2];
  float sum[2];
  FragmentC out[kTiles];
};

// O and l of a chunk that goes on: l stands in a fragment whose 8 columns are all the same.
template <int kTiles>
struct ChunkState {
  float max[2];
  FragmentC sum;
  FragmentC out[kTiles];

  __device__ void Start() {
    max[0] = max[1] = -INFINITY;
    sum = {};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) out[i] = {};
  }

  // Before the products of a tile after which the maxima are `new_max`. A row whose maximum stays is
  // multiplied by 1, which changes nothing.
  __device__ void Rescale(const float (&new_max)[2], float c) {
    const bool changed = new_max[0] != max[0] || new_max[1] != max[1];
    if (!__any_sync(0xFFFFFFFFu, changed)) return;
    const float alpha0 = new_max[0] != max[0] ? RescaleFactor(max[0], new_max[0], c) : 1.0f;
    const float alpha1 = new_max[1] != max[1] ? RescaleFactor(max[1], new_max[1], c) : 1.0f;
    sum.x[0] = __fmul_rn(sum.x[0], alpha0);
    sum.x[2] = __fmul_rn(sum.x[2], alpha1);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      out[i].x[0] = __fmul_rn(out[i].x[0], alpha0);
      out[i].x[1] = __fmul_rn(out[i].x[1], alpha0);
      out[i].x[2] = __fmul_rn(out[i].x[2], alpha1);
      out[i].x[3] = __fmul_rn(out[i].x[3], alpha1);
    }
    max[0] = new_max[0];
    max[1] = new_max[1];
  }
};

// One row's step of the fold: what the two sides' sums are multiplied by.
struct FoldFactors {
  float max;
  float folded;
  float chunk;
};

__device__ inline FoldFactors FoldRow(float folded_max, float chunk_max, float c) {
  const float max = fmaxf(folded_max, chunk_max);
  return {max, RescaleFactor(folded_max, max, c), RescaleFactor(chunk_max, max, c)};
}

__device__ inline float FoldValue(float folded, float chunk, const FoldFactors& factors) {
  return __fmaf_rn(folded, factors.folded, __fmul_rn(chunk, factors.chunk));
}

// Adds a chunk to what the chunks before it gave; the first one is taken as it is.
template <int kTiles>
__device__ inline void Fold(const ChunkState<kTiles>& chunk, bool first, float c,
                            SoftmaxState<kTiles>* folded) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (first) {
      folded->max[row] = chunk.max[row];
      folded->sum[row] = chunk.sum.x[2 * row];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        folded->out[i].x[2 * row] = chunk.out[i].x[2 * row];
        folded->out[i].x[2 * row + 1] = chunk.out[i].x[2 * row + 1];
      }
    } else if (chunk.max[row] != -INFINITY) {  // the row sees a key of this chunk
      const FoldFactors factors = FoldRow(folded->max[row], chunk.max[row], c);
      folded->max[row] = factors.max;
      folded->sum[row] = FoldValue(folded->sum[row], chunk.sum.x[2 * row], factors);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        folded->out[i].x[2 * row] = FoldValue(folded->out[i].x[2 * row], chunk.out[i].x[2 * row], factors);
        folded->out[i].x[2 * row + 1] =
            FoldValue(folded->out[i].x[2 * row + 1], chunk.out[i].x[2 * row + 1], factors);
      }
    }
  }
}

// A lane's two virtual rows of a tile that begins at virtual row `first` of the item's run. Rows beyond the
// tile's last one stand where that one does; what they give is not stored.
struct LaneRows {
  int position[2];
  int64_t offset[2];  // of head_dim values in q and out
  bool valid[2];
};

// Where head_dim values of a virtual row of the item's run stand in q and out.
__device__ inline int64_t RowOffset(const AttentionArgs& args, const AttentionItem& item,
                                    unsigned virtual_row, int kv_head) {
  const unsigned group = static_cast<unsigned>(args.num_heads) / static_cast<unsigned>(args.num_kv_heads);
  const unsigned row = virtual_row / group, head = virtual_row % group;
  return (static_cast<int64_t>(item.first_row + static_cast<int>(row)) * args.num_heads + kv_head * group +
          head) *
         args.head_dim;
}

__device__ inline LaneRows MakeLaneRows(const AttentionArgs& args, const AttentionItem& item, int first,
                                        int kv_head, unsigned lane) {
  const unsigned group = static_cast<unsigned>(args.num_heads) / static_cast<unsigned>(args.num_kv_heads);
  LaneRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int wanted = first + static_cast<int>(lane / 4) + 8 * i;
    const int last = item.first_virtual + item.num_virtual - 1;
    const unsigned virtual_row = min(wanted, last);
    rows.valid[i] = wanted <= last;
    rows.position[i] = item.first_position + static_cast<int>(virtual_row / group);
    rows.offset[i] = RowOffset(args, item, virtual_row, kv_head);
  }
  return rows;
}

// The Q operand of columns 16 step .. 16 step + 15; zeros beyond head_dim.
__device__ inline FragmentA LoadQuery(const AttentionArgs& args, const LaneRows& rows, int step,
                                      unsigned lane) {
  FragmentA q;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = step * 16 + static_cast<int>(lane % 4 * 2) + i / 2 * 8;
    q.x[i] = column < args.head_dim ? *reinterpret_cast<const uint32_t*>(args.q + rows.offset[i % 2] + column)
                                    : 0u;
  }
  return q;
}

// Stores O / l of the columns of n-tiles from `first_column` on.
template <int kTiles>
__device__ inline void StoreOutput(const AttentionArgs& args, const LaneRows& rows,
                                   const SoftmaxState<kTiles>& state, int first_column, unsigned lane) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (!rows.valid[row]) continue;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int column = first_column + i * 8 + static_cast<int>(lane % 4 * 2);
      if (column >= args.head_dim) continue;
      *reinterpret_cast<__half2*>(args.out + rows.offset[row] + column) =
          SaturateToHalf2(__fdiv_rn(state.out[i].x[2 * row], state.sum[row]),
                          __fdiv_rn(state.out[i].x[2 * row + 1], state.sum[row]), args.saturations);
    }
  }
}

}  // namespace ridge::kernels::cuda
