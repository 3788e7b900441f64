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

// The squares' sums of the rows that stand in x as [rows][kMaxHidden] floats: half a warp a group of 256
// columns.
__device__ inline void SumSquares(const Block& block, int groups) {
  constexpr int kValues = kNormGroup / kVirtualLanes;
  const int lane = static_cast<int>(threadIdx.x) % kVirtualLanes, all = block.rows * groups;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / kVirtualLanes; i < (all + 1) / 2 * 2; i += kNormHalves) {
    const int task = min(i, all - 1);  // both halves of a warp
    const int row = task * block.groups_reciprocal >> 16, group = task - row * groups;
    const uint32_t from = block.x + (row * kMaxHidden + group * kNormGroup + lane) * 4;
    float values[kValues];
#pragma unroll
    for (int j = 0; j < kValues; ++j) values[j] = LoadSharedFloat(from + j * kVirtualLanes * 4);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kValues; ++j) sum = __fmaf_rn(values[j], values[j], sum);
#pragma unroll
    for (int width = kVirtualLanes / 2; width >= 1; width /= 2)
      sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width, kVirtualLanes));
    if (lane == 0) StoreSharedFloat(block.norm_sums + (row * kNormHalves + group) * 4, sum);
  }
}

// Of a row's groups, in ascending order; behind the last one stand zeros.
__device__ inline float AddGroups(uint32_t sums, int groups) {
  float sum = 0.0f;
#pragma unroll 1
  for (int first = 0; first < groups; first += 4) {
    const uint4 values = LoadShared128(sums + first * 4);
    sum = __fadd_rn(sum, __uint_as_float(values.x));
    sum = __fadd_rn(sum, __uint_as_float(values.y));
    sum = __fadd_rn(sum, __uint_as_float(values.z));
    sum = __fadd_rn(sum, __uint_as_float(values.w));
  }
  return sum;
}

// RMSNorm of the handed-over rows, whose first is at `from`, to x: a thread four columns of every row. What
// a thread does for a row is few instructions, without a branch: they are fetched anew each time.
template <int kRows>
__device__ __noinline__ void NormRows(uint32_t block_address, const uint32_t* from, const float* weight) {
  const Block& block = BlockAt(block_address);
  const int hidden = block.args.shape.hidden, groups = hidden / kNormGroup, rows = block.rows;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpThreads;
  // Threads beyond the columns have the last ones, too.
  const int quad = min(thread, hidden / 4 - 1);
  const float4 weights = reinterpret_cast<const float4*>(weight)[quad];
  uint4 words[kRows];
  PollArmed(
      words, kWaitNorm, [&](int i) { return i < rows; },
      [&](int i) { return from + i * kArmedRow + quad * 4; });
  SyncWarps<kConsumers>(kConsumersBarrier);  // nobody reads the x before
#pragma unroll
  for (int i = 0; i < kRows; ++i) StoreShared128(block.x + i * kMaxHidden * 4 + quad * 16, words[i]);
  SyncWarps<kConsumers>(kConsumersBarrier);
  SumSquares(block, groups);
  SyncWarps<kConsumers>(kConsumersBarrier);
  if (warp < rows) {
    const float sum = AddGroups(block.norm_sums + warp * kNormHalves * 4, groups);
    StoreSharedFloat(block.norm_scales + warp * 4, NormScale(sum, hidden, block.args.norm_eps));
  }
  SyncWarps<kConsumers>(kConsumersBarrier);
  const auto value = [&](uint32_t x, float scale, float of) {
    return NormValue(__uint_as_float(x), scale, of);
  };
  const uint32_t to = block.x + quad * 8;
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float scale = LoadSharedFloat(block.norm_scales + i * 4);
    const float a = value(words[i].x, scale, weights.x), b = value(words[i].y, scale, weights.y),
                c = value(words[i].z, scale, weights.z), d = value(words[i].w, scale, weights.w);
    largest = fmaxf(fmaxf(largest, fmaxf(fabsf(a), fabsf(b))), fmaxf(fabsf(c), fabsf(d)));
    StoreShared64(to + i * kXStride, WordOf(__floats2half2_rn(a, b)), WordOf(__floats2half2_rn(c, d)));
  }
  if (largest > kHalfMax) {  // rare: again
    // Every block has the same values: one of them counts.
    unsigned long long* const saturations =
        blockIdx.x == 0 && thread == quad ? block.args.saturations : nullptr;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float scale = LoadSharedFloat(block.norm_scales + i * 4);
      const __half2 low = SaturateToHalf2(value(words[i].x, scale, weights.x),
                                          value(words[i].y, scale, weights.y), saturations),
                    high = SaturateToHalf2(value(words[i].z, scale, weights.z),
                                           value(words[i].w, scale, weights.w), saturations);
      StoreShared64(to + i * kXStride, WordOf(low), WordOf(high));
    }
  }
  SyncWarps<kConsumers>(kConsumersBarrier);
}

// Columns of the handed-over fp16 rows, to x: eight a quad of words. The first row's are at `from`. Zeros for
// rows that are not in `valid_rows`.
template <int kRows>
__device__ __noinline__ void CopyRows(uint32_t block_address, const uint32_t* from, int quads,
                                      uint32_t valid_rows) {
  // A thread has one quad of every other row, and a warp what is left of one row.
  constexpr int kQuads = kConsumers / 2, kTurns = (kRows + 1) / 2;
  static_assert(kQuads + kWarpThreads >= kMaxColumns / 8 && kRows <= kConsumerWarps);
  const Block& block = BlockAt(block_address);
  const int thread = static_cast<int>(threadIdx.x), rows = block.rows;
  const int first_row = thread / kQuads, quad = thread % kQuads;
  const int last_row = thread / kWarpThreads, last_quad = kQuads + thread % kWarpThreads;
  const auto row = [&](int i) { return i < kTurns ? first_row + 2 * i : last_row; };
  const auto has = [&](int i) { return row(i) < rows && (i < kTurns ? quad : last_quad) < quads; };
  const uint32_t* const first_from = from + first_row * kArmedRow + quad * 4;
  const uint32_t* const last_from = from + last_row * kArmedRow + last_quad * 4;
  uint4 words[kTurns + 1];
  PollArmed(
      words, kWaitRows, [&](int i) { return has(i) && (valid_rows >> row(i) & 1) != 0; },
      [&](int i) { return i < kTurns ? first_from + 2 * i * kArmedRow : last_from; });
  SyncWarps<kConsumers>(kConsumersBarrier);  // nobody reads the x before
#pragma unroll
  for (int i = 0; i <= kTurns; ++i) {
    if (has(i)) StoreShared128(block.x + row(i) * kXStride + (i < kTurns ? quad : last_quad) * 16, words[i]);
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
    __syncwarp();  // else the last product is left until the piece has been given back: 0.01 ms a step
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

// All chains of a phase that are this warp's. x has all of K, or the split chunk. The phase begins at those
// numbers of a piece and of a unit.
template <int kRows>
__device__ __noinline__ void Multiply(uint32_t block_address, int phase, int warp, int lane,
                                      uint32_t first_piece, uint32_t first_unit) {
  const Block& block = BlockAt(block_address);
  const MatrixShare share = block.shares[phase];
  const int tasks = share.Tasks(), pieces = share.Pieces();
  const RowPlaces<1> rows(block.rows, kXStride, lane);
  const auto ring = block.RingOf<RingSlots(kRows)>();
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
        FenceForBulkCopies();
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

template <int kRows, int kDim>
__device__ void Consume(uint32_t block_address, int warp, int lane) {
  const Block& block = BlockAt(block_address);
  const uint32_t valid_rows = ValidRows(block);
  uint32_t piece = 0, unit = 0;
#pragma unroll 1
  for (int i = 0; i < block.args.shape.num_layers * kPhases; ++i) {
    const int layer = i / kPhases, phase = i % kPhases;
    const MatrixShare& share = block.shares[phase];
    if (phase == kAttentionOutput && block.has_item) {
      SyncWarps<kConsumers>(kConsumersBarrier);  // nobody reads x
      if (warp < kChunkWarps) RunAttention<RingSlots(kRows), kDim>(block_address, warp, lane, layer, piece);
      piece += 2 * KeyPieces<kDim>(block.work);
    }
    if (share.units == 0) continue;
    if (phase == kQkv || phase == kGateUp) {
      const DecodeLayerWeights& weights = block.layers[layer];
      NormRows<kRows>(block_address, block.Armed(layer, 0, phase == kQkv ? kArmedInput : kArmedMiddle),
                      phase == kQkv ? weights.attention_norm : weights.mlp_norm);
    } else if (phase == kDown) {
      CopyRows<kRows>(block_address,
                      block.Armed(layer, 0, kArmedGated) + share.split_chunk * (kMaxColumns / 2),
                      share.chunk_steps * kTileDepth / 8, 0xFFFFFFFFu);
    } else {
      CopyRows<kRows>(block_address, block.Armed(layer, 0, kArmedAttention), block.q_size / 8, valid_rows);
    }
    Multiply<kRows>(block_address, phase, warp, lane, piece, unit);
    piece += share.Tasks() * share.Pieces();
    unit += share.units;
  }
}

#endif

}  // namespace ridge::kernels::cuda::decode_layers
