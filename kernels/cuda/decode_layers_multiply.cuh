// The warps that multiply (decode_layers.cu): norms and rows that were handed over to shared memory, a chain
// a warp, sums to the finishing warps.
//
// Every phase is a function that is called: what a phase needs would otherwise be computed before the loop
// over layers, and fill the registers of all others.
#pragma once

#include "kernels/cuda/decode_layers_attention.cuh"
#include "kernels/cuda/decode_layers_block.cuh"
#include "kernels/cuda/rms_norm.cuh"

namespace ridge::kernels::cuda::decode_layers {

#if __CUDA_ARCH__ >= 900

// The squares' sums of groups of 256 columns, each by half a warp, of all groups and rows.
__device__ inline void SumSquares(const Block& block, int hidden) {
  constexpr int kValues = kNormGroup / kVirtualLanes;
  const int groups = hidden / kNormGroup, lane = static_cast<int>(threadIdx.x) % kVirtualLanes;
  const int all = block.rows * groups, first = static_cast<int>(threadIdx.x) / kVirtualLanes;
#pragma unroll 1
  for (int i = first; i < (all + 1) / 2 * 2; i += kNormHalves) {  // both halves of a warp
    const uint32_t from = block.normed + (min(i, all - 1) * kNormGroup + lane) * 4;
    float values[kValues];
#pragma unroll
    for (int j = 0; j < kValues; ++j) values[j] = LoadSharedFloat(from + j * kVirtualLanes * 4);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kValues; ++j) sum = __fmaf_rn(values[j], values[j], sum);
#pragma unroll
    for (int width = kVirtualLanes / 2; width >= 1; width /= 2)
      sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width, kVirtualLanes));
    if (lane == 0 && i < all) StoreSharedFloat(block.norm_sums + i * 4, sum);
  }
}

// Of groups' sums, in ascending order; loads go out together.
__device__ inline float AddGroups(uint32_t sums, int groups) {
  constexpr int kGroups = 8;
  float sum = 0.0f;
#pragma unroll 1
  for (int first = 0; first < groups; first += kGroups) {
    float values[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) values[i] = LoadSharedFloat(sums + min(first + i, groups - 1) * 4);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (first + i < groups) sum = __fadd_rn(sum, values[i]);
    }
  }
  return sum;
}

// RMSNorm of the handed-over rows to x [rows][hidden + kRowPad]. `kPairs`: of columns that a thread polls at
// a time.
template <int kPairs>
__device__ __noinline__ void NormWords(uint32_t block_address, const uint64_t* words, uint32_t tag,
                                       const float* weight) {
  const Block& block = BlockAt(block_address);
  const int hidden = block.args.shape.hidden, row_pairs = hidden / 2, pairs = block.rows * row_pairs;
  const int first = static_cast<int>(threadIdx.x);
  for (int i = first; i < hidden / 4; i += kConsumers)
    CopyAsync16(block.norm_weight + i * 16, weight + i * 4);
  CommitCopies();
#pragma unroll 1
  for (int begin = first; begin < pairs; begin += kPairs * kConsumers) {
    WordPair values[kPairs];
    PollPairs(
        values, tag, kWaitNorm, [&](int i) { return begin + i * kConsumers < pairs; },
        [&](int i) { return words + (begin + i * kConsumers) * 2; });
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = begin + i * kConsumers;
      if (pair < pairs) StoreShared64(block.normed + pair * 8, values[i].Value(0), values[i].Value(1));
    }
  }
  WaitForCopies<0>();
  SyncWarps<kConsumers>(kConsumersBarrier);
  SumSquares(block, hidden);
  SyncWarps<kConsumers>(kConsumersBarrier);  // sums are there, and nobody reads the x before
  const int groups = hidden / kNormGroup;
#pragma unroll 1
  for (int row = 0; row < block.rows; ++row) {
    const float scale =
        NormScale(AddGroups(block.norm_sums + row * groups * 4, groups), hidden, block.args.norm_eps);
#pragma unroll 1
    for (int begin = first; begin < row_pairs; begin += kPairs * kConsumers) {
      float2 values[kPairs], weights[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int pair = min(begin + i * kConsumers, row_pairs - 1);
        values[i] = LoadSharedFloats(block.normed + (row * row_pairs + pair) * 8);
        weights[i] = LoadSharedFloats(block.norm_weight + pair * 8);
      }
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int pair = begin + i * kConsumers;
        if (pair >= row_pairs) break;
        // Every block has the same values: one of them counts.
        const __half2 rounded = SaturateToHalf2(NormValue(values[i].x, scale, weights[i].x),
                                                NormValue(values[i].y, scale, weights[i].y),
                                                blockIdx.x == 0 ? block.args.saturations : nullptr);
        StoreShared32(block.x + row * (hidden + kRowPad) * 2 + pair * 4, WordOf(rounded));
      }
    }
  }
  SyncWarps<kConsumers>(kConsumersBarrier);
}

// Columns [first, first + count) of the handed-over fp16 rows [rows][row_words], to x [rows][count +
// kRowPad]. Zeros for rows that are not in `valid_rows`.
template <int kPairs>
__device__ __noinline__ void CopyRows(uint32_t block_address, const uint64_t* words, int row_words, int first,
                                      int count, uint32_t valid_rows, uint32_t tag) {
  const Block& block = BlockAt(block_address);
  const int row_pairs = count / 4, pairs = block.rows * row_pairs;
  SyncWarps<kConsumers>(kConsumersBarrier);  // nobody reads the x before
#pragma unroll 1
  for (int begin = static_cast<int>(threadIdx.x); begin < pairs; begin += kPairs * kConsumers) {
    WordPair values[kPairs];
    const uint64_t* from[kPairs];
    uint32_t to[kPairs];
    bool wanted[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      int row = 0, pair = begin + i * kConsumers;
      for (; row + 1 < block.rows && pair >= row_pairs; ++row) pair -= row_pairs;
      wanted[i] = pair < row_pairs && (valid_rows >> row & 1) != 0;
      from[i] = words + static_cast<int64_t>(row) * row_words + first / 2 + pair * 2;
      to[i] = block.x + (row * (count + kRowPad) + pair * 4) * 2;
    }
    PollPairs(
        values, tag, kWaitRows, [&](int i) { return wanted[i]; }, [&](int i) { return from[i]; });
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (begin + i * kConsumers < pairs) StoreShared64(to[i], values[i].Value(0), values[i].Value(1));
    }
  }
  SyncWarps<kConsumers>(kConsumersBarrier);
}

// A piece of weights with the columns of x at `slice`.
__device__ inline void MultiplyPiece(FragmentC& c, uint32_t piece, uint32_t slice, const RowPlaces<1>& rows) {
  // Steps are fetched in groups, one group ahead.
  constexpr int kGroup = 4, kGroups = kPieceSteps / kGroup;
  uint4 a[2][kGroup];
  uint32_t b[2][kGroup / 2][1][4];
  const auto fetch = [&](int group) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i % 2 == 0) rows.Load(b[group % 2][i / 2], slice, group * kGroup + i);
      a[group % 2][i] = LoadShared128(piece + (group * kGroup + i) * kTileSize * 2);
    }
  };
  fetch(0);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (group + 1 < kGroups) fetch(group + 1);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const uint4& w = a[group % 2][i];
      const uint32_t(&x)[4] = b[group % 2][i / 2][0];
      Mma(c, {{w.x, w.y, w.z, w.w}}, {{x[i % 2 * 2], x[i % 2 * 2 + 1]}});
    }
  }
}

// A chain's sums to `sums` [tokens][kSumStride].
__device__ inline void StoreChain(const FragmentC& c, uint32_t sums, int tokens, int lane) {
  const int token = lane % 4 * 2;
  if (token >= tokens) return;
  const uint32_t to = sums + (token * kSumStride + lane / 4) * 4;
  StoreSharedFloat(to, c.x[0]);
  StoreSharedFloat(to + kSumStride * 4, c.x[1]);
  StoreSharedFloat(to + 8 * 4, c.x[2]);
  StoreSharedFloat(to + (kSumStride + 8) * 4, c.x[3]);
}

// All chains of a phase that are this warp's. x has rows of `columns` + kRowPad elements: all of K, or the
// split chunk. The phase begins at those numbers of a piece and of a unit.
template <int kSlots>
__device__ __noinline__ void Multiply(uint32_t block_address, int phase, int columns, int warp, int lane,
                                      uint32_t first_piece, uint32_t first_unit) {
  const Block& block = BlockAt(block_address);
  const MatrixShare share = block.shares[phase];
  const int tasks = share.Tasks(), pieces = share.Pieces();
  const RowPlaces<1> rows(block.rows, (columns + kRowPad) * 2, lane);
  const Ring<kSlots> ring = block.RingOf<kSlots>();
  const int chunk_bytes = block.sum_tokens * kSumStride * 4;
#pragma unroll 1
  for (int first = 0; first < tasks; first += kConsumerWarps) {
    const int count = min(kConsumerWarps, tasks - first);
    if (warp < count) {
      const int task = first + warp, chunk = share.TaskChunk(task);
      uint32_t slice = block.x + (share.IsSplit() ? 0 : chunk * share.chunk_steps * kTileDepth * 2);
      FragmentC c{};
      uint32_t number = first_piece + warp;
#pragma unroll 1
      for (int piece = 0; piece < pieces; ++piece) {
        ring.AwaitFull(number);
        MultiplyPiece(c, ring.Piece(number) + lane * 16, slice, rows);
        __syncwarp();
        if (lane == 0) ring.Release(number);
        number += count;
        slice += kPieceSteps * kTileDepth * 2;
      }
      const uint32_t unit = first_unit + share.TaskUnit(task);
      AwaitCount(block.sums_taken, unit, unit / kSumSlots, kWaitSumSlot);
      StoreChain(c, block.Sums(unit) + (share.IsSplit() ? 0 : chunk * chunk_bytes), block.sum_tokens, lane);
      __syncwarp();
      // kMaxDotChunks a unit, the missing ones by the last chunk's warp.
      const bool last = chunk == share.chunks - 1;
      if (lane == 0) {
        AddSharedRelease(block.sums_stored + unit % kSumSlots * 4, share.IsSplit() ? kMaxDotChunks
                                                                   : last          ? kMaxDotChunks - chunk
                                                                                   : 1);
      }
    }
    first_piece += count * pieces;
  }
}

// Rows that are not only padding: those have no attention.
__device__ inline uint32_t ValidRows(const Block& block) {
  uint32_t rows = 0;
  for (int row = 0; row < block.rows; ++row) rows |= block.args.rope.slots[row] >= 0 ? 1u << row : 0;
  return rows;
}

template <int kSlots, int kDim>
__device__ void Consume(uint32_t block_address, int warp, int lane) {
  // A thread's share of one row, or of several.
  constexpr int kPairs = kSlots == kLongRing ? 2 : 4;
  const Block& block = BlockAt(block_address);
  const uint32_t valid_rows = ValidRows(block);
  uint32_t piece = 0, unit = 0;
#pragma unroll 1
  for (int i = 0; i < block.args.shape.num_layers * kPhases; ++i) {
    const int layer = i / kPhases, phase = i % kPhases;
    const MatrixShare& share = block.shares[phase];
    const uint32_t tag = block.tags.Of(layer);
    if (phase == kAttentionOutput && block.has_item) {
      SyncWarps<kConsumers>(kConsumersBarrier);  // nobody reads x
      if (warp < kChunkWarps) RunAttention<kSlots, kDim>(block_address, warp, lane, tag, piece);
      piece += 2 * KeyPieces<kDim>(block.work);
    }
    if (share.units == 0) continue;
    int columns = block.args.shape.hidden;
    if (phase == kQkv || phase == kGateUp) {
      const DecodeLayerWeights& weights = block.layers[layer];
      NormWords<kPairs>(block_address, phase == kQkv ? block.words.input : block.words.middle, tag,
                        phase == kQkv ? weights.attention_norm : weights.mlp_norm);
    } else if (phase == kDown) {
      columns = share.chunk_steps * kTileDepth;
      CopyRows<kPairs>(block_address, block.words.gated, block.args.shape.mlp / 2,
                       share.split_chunk * columns, columns, 0xFFFFFFFFu, tag);
    } else {
      columns = block.q_size;
      CopyRows<kPairs>(block_address, block.words.attention, columns / 2, 0, columns, valid_rows, tag);
    }
    Multiply<kSlots>(block_address, phase, columns, warp, lane, piece, unit);
    piece += share.Tasks() * share.Pieces();
    unit += share.units;
  }
}

#endif

}  // namespace ridge::kernels::cuda::decode_layers
