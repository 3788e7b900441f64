// The layers of a decode step of up to 4 rows, by one block a multiprocessor that stays for all of them.
//
// Geometry: 16 warps. One fills a ring of 160 KiB in shared memory with the block's weights, 8 KiB a piece,
// in the order in which they will be used, layer after layer, and with attention's old keys and values; it
// waits for free slots alone, and so runs ahead of everything that waits for results. Twelve multiply: a warp
// a chain (a row tile and chunk of K), weights as the 16-row operand, tokens as n8, so that 4 rows take what
// one takes; eight of them do attention. Three finish: they add the chunks' sums, do what follows (bias and
// RoPE, residual, SwiGLU) and hand the results over.
//
// Phases of a layer: (1) norm, q/k/v, RoPE, KV write; (2) attention, a chunk of keys and KV head a block; (3)
// O and residual; (4) norm, gate/up, SwiGLU; (5) down: a block takes one chunk of K and hands over sums, (6)
// the block that owns a tile of the residual stream adds them. Every block norms for itself. Tiles of O and
// of the residual stream are a block's own, so that its part stays in shared memory.
//
// Hand-over: words with tags (handover.cuh), one array a phase, tags that no other layer or launch has; who
// needs a word polls it. An array is written again a layer later by blocks that then depend, through the
// phases between, on everyone who read it. It cannot deadlock: all blocks are resident (a cooperative
// launch), each goes through layers and phases in the same order, and a phase waits for nothing but words of
// earlier ones; within (2) and (6) words of the same phase that are handed over before their blocks wait for
// any. Within a block the filling warp waits for slots only, which the others give back in the order of
// filling; attention needs at most 16 of 20 pieces at a time.
//
// Bits: each chunk of K is one chain of mma.m16n8k16, chunk sums are added in ascending order, attention is
// attention_chunk.cuh's with its chunks folded in ascending order: those of the kernels in matmul.h and
// attention.h.
//
// Bytes: the layers' weights once, K and V once a KV head; from L2 8 bytes a value handed over and block.
// FLOPs: 2 a weight and row, on tiles of 8 rows. Shared memory: the ring, x, sums: 190 KiB for Qwen2.5-1.5B.
// sm_90a only: elsewhere the plan says no. Reference: the kernels that it stands for
// (tests/gpu/decode_layers_test.cc).
#include <cuda_fp16.h>

#include "kernels/cuda/decode_layers.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/rms_norm.cuh"

namespace ridge::kernels::cuda {
namespace {

#if __CUDA_ARCH__ >= 900

constexpr int kProducer = kConsumerWarps;  // the warps behind it finish
constexpr int kChunkThreads = kChunkWarps * kWarpThreads;
// Named barriers: of all multiplying warps, and of those that do attention.
constexpr int kConsumersBarrier = 1, kAttentionBarrier = 2;

// Where waiting threads are, for SpinGuard.
enum Waits { kWaitSums = 10, kWaitSumSlot, kWaitNorm, kWaitRows, kWaitQueries, kWaitPartials, kWaitDown };

template <int kThreads>
__device__ inline void SyncWarps(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// What a launch's words are tagged with, in layer `layer`: never 0, which fresh memory has.
struct Tags {
  uint32_t first;
  __device__ uint32_t Of(int layer) const { return first + layer; }
};

// The matrices of a layer, in the order in which they are used.
enum Phase { kQkv, kAttentionOutput, kGateUp, kDown, kPhases };

// What all roles of a block know; in shared memory, since it would fill their registers.
struct Block {
  const DecodeLayerWeights* layers;  // shared memory
  DecodeLayersWords words;
  Ring ring;
  uint32_t x;  // shared address
  float* sums;
  int sum_floats;        // of a slot
  uint32_t sums_stored;  // shared address of [kSumSlots]: chunks' sums that were put there, over all units
  uint32_t sums_taken;   // likewise: units whose sums were taken
  float* residual;       // [owned][rows][16]
  float* norm_sums;
  RopePlace* places;  // [qkv units][rows][8]
  Tags tags;
  int rows;
  int q_size, qkv_size;
  MatrixShare shares[kPhases];
  const AttentionItem* item;  // of attention, in shared memory; null: none

  __device__ float* Sums(uint32_t unit) const { return sums + unit % kSumSlots * sum_floats; }
};

// ---- The warp that fills the ring.

// Pieces that are under way at a time: more would stand before the words that hand over results.
constexpr uint32_t kInFlight = 8;

// By one thread, which has a fifth of a microsecond a piece.
__device__ void StreamWeights(const Ring ring, const MatrixShare share, const Half* weights, uint64_t policy,
                              uint32_t* next) {
  const int tasks = share.Tasks(), pieces = share.Pieces();
  const int64_t tile_distance = int64_t{share.stride} * share.depth * kTileSize;
#pragma unroll 1
  for (int first = 0; first < tasks; first += kConsumerWarps) {
    const int count = min(kConsumerWarps, tasks - first);
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece) {
      int chunk = share.TaskChunk(first);
      const Half* tile = weights + int64_t{share.Tile(share.TaskUnit(first))} * share.depth * kTileSize;
#pragma unroll 1
      for (int i = 0; i < count; ++i, ++*next) {
        const uint32_t full = ring.Full(*next);
        if (*next >= kInFlight) ring.AwaitLanded(*next - kInFlight);
        ring.AwaitEmpty(*next);
        ArriveExpecting(full, kPieceSize);
        CopyBulk(ring.Piece(*next), tile + (chunk * share.chunk_steps + piece * kPieceSteps) * kTileSize,
                 kPieceSize, full, policy);
        if (share.IsSplit()) {
          tile += tile_distance;
        } else if (++chunk == share.chunks) {
          chunk = 0;
          tile += tile_distance;
        }
      }
    }
  }
}

// Keys of a piece, and pieces of a chunk's keys (as many of its values).
template <int kDim>
constexpr int kPieceKeys = kPieceSize / (kDim * 2);
template <int kDim>
__device__ inline int KeyPieces(const ChunkWork& work) {
  return work.num_tiles * (kAttentionTile / kPieceKeys<kDim>);
}

// Keys, then values, of a chunk: what earlier steps wrote (the new key's row is whatever stands there). By
// the whole warp.
template <int kDim>
__device__ void StreamKeys(const Ring ring, const KvLayer& kv, const ChunkWork& work, int lane,
                           uint32_t* next) {
  constexpr int kPieces = kDim / kPieceHalves, kTurnKeys = kWarpThreads / kPieces;
  const unsigned lane_key = lane / kPieces, lane_piece = lane % kPieces;
#pragma unroll 1
  for (int i = 0; i < 2 * KeyPieces<kDim>(work); ++i, ++*next) {
    const bool is_value = i >= KeyPieces<kDim>(work);
    const int first_page = (is_value ? i - KeyPieces<kDim>(work) : i) * (kPieceKeys<kDim> / kKvBlockTokens);
    const Half* heads = kv.pool + (is_value ? kv.value_offset : kv.key_offset) +
                        static_cast<int64_t>(work.kv_head) * kKvBlockTokens * kDim + lane * kPieceHalves;
    const uint32_t to = ring.Piece(*next);
    ring.AwaitEmpty(*next);
#pragma unroll
    for (int page = 0; page < kPieceKeys<kDim> / kKvBlockTokens; ++page) {
      const int64_t block = __shfl_sync(0xFFFFFFFFu, work.block, first_page + page);
      const Half* from = heads + block * kv.block_stride;
#pragma unroll
      for (int key = 0; key < kKvBlockTokens; key += kTurnKeys) {
        CopyAsync16(to + SwizzledOffset<kPieces>(page * kKvBlockTokens + key + lane_key, lane_piece),
                    from + key * kDim, first_page + page < work.num_pages);
      }
    }
    ArriveWithCopies(ring.Full(*next));
    __syncwarp();
    if (lane == 0) Arrive(ring.Full(*next));
  }
}

__device__ inline KvLayer KvOf(const DecodeLayersArgs& args, int layer) {
  KvLayer kv = args.rope.kv;
  kv.key_offset += layer * args.kv_layer_stride;
  kv.value_offset += layer * args.kv_layer_stride;
  return kv;
}

__device__ inline ChunkWork WorkOf(const DecodeLayersArgs& args, const Block& block, int lane) {
  return MakeChunkWork(args.rope.block_tables, args.rope.table_stride, *block.item,
                       static_cast<int>(blockIdx.x % args.shape.num_kv_heads), lane);
}

template <int kDim>
__device__ void FillRing(const DecodeLayersArgs& args, const Block& block, int lane) {
  const uint64_t policy = EvictFirstPolicy();
  ChunkWork work{};
  if (block.item != nullptr) work = WorkOf(args, block, lane);
  uint32_t next = 0;
#pragma unroll 1
  for (int i = 0; i < args.shape.num_layers * kPhases; ++i) {
    const int layer = i / kPhases, phase = i % kPhases;
    const DecodeLayerWeights& weights = block.layers[layer];
    if (phase == kAttentionOutput && block.item != nullptr)
      StreamKeys<kDim>(block.ring, KvOf(args, layer), work, lane, &next);
    const Half* const matrix = phase == kQkv               ? weights.qkv
                               : phase == kAttentionOutput ? weights.attention_output
                               : phase == kGateUp          ? weights.gate_up
                                                           : weights.down;
    if (lane == 0) StreamWeights(block.ring, block.shares[phase], matrix, policy, &next);
    next = __shfl_sync(0xFFFFFFFFu, next, 0);
  }
}

// ---- The warps that multiply.

// Where they stand in the ring and in the units of the block.
struct Progress {
  uint32_t piece = 0;
  uint32_t unit = 0;
};

// RMSNorm of the handed-over rows to x [rows][hidden + kRowPad]: half a warp takes a group of 256 columns of
// a row, and the same group of other rows.
template <int kRounds>
__device__ void NormWords(const DecodeLayersArgs& args, const Block& block, const uint64_t* words,
                          uint32_t tag, const float* weight) {
  const int hidden = args.shape.hidden, groups = NormGroups(hidden), rows_at_once = kNormHalves / groups;
  const int half = threadIdx.x / kVirtualLanes, lane = threadIdx.x % kVirtualLanes;
  const int first_row = half < rows_at_once * groups ? half / groups : block.rows;
  const int column = half % groups * kNormGroup + lane;
  constexpr int kValues = kNormGroup / kVirtualLanes;
  const int count = min(kNormGroup, hidden - (column - lane)) / kVirtualLanes;
  float weights[kValues];
  const auto load_weights = [&] {
#pragma unroll
    for (int i = 0; i < kValues; ++i) weights[i] = i < count ? weight[column + i * kVirtualLanes] : 0.0f;
  };
  load_weights();
  uint32_t values[kRounds][kValues];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int row = first_row + round * rows_at_once;
    const uint64_t* from = words + static_cast<int64_t>(row) * hidden + column;
    const int valid = row < block.rows ? count : 0;
    PollWords(
        values[round], tag, kWaitNorm, [&](int i) { return i < valid; },
        [&](int i) { return from + i * kVirtualLanes; });
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float value = __uint_as_float(values[round][i]);
      sum = __fmaf_rn(value, value, sum);  // zeros behind the last change nothing
    }
#pragma unroll
    for (int width = kVirtualLanes / 2; width >= 1; width /= 2)
      sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width, kVirtualLanes));
    if (lane == 0 && valid > 0) block.norm_sums[row * groups + half % groups] = sum;
  }
  SyncWarps<kConsumers>(kConsumersBarrier);  // sums are there, and nobody reads the x before
  if (kRounds > 1) load_weights();           // again: there were no registers to keep them
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int row = first_row + round * rows_at_once;
    if (row >= block.rows) break;
    const float scale = NormScale(block.norm_sums + row * groups, hidden, args.norm_eps);
    const uint32_t to = block.x + (row * (hidden + kRowPad) + column) * 2;
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float value = NormValue(__uint_as_float(values[round][i]), scale, weights[i]);
      largest = fmaxf(largest, fabsf(value));
      const __half rounded = __float2half_rn(fminf(fmaxf(value, -kHalfMax), kHalfMax));
      if (i < count) StoreShared16(to + i * kVirtualLanes * 2, __half_as_ushort(rounded));
    }
    if (largest > kHalfMax && blockIdx.x == 0) {  // every block has the same values: one of them counts
      for (int i = 0; i < kValues; ++i) {
        const float value = NormValue(__uint_as_float(values[round][i]), scale, weights[i]);
        if (fabsf(value) > kHalfMax) atomicAdd(args.saturations, 1ull);
      }
    }
  }
  SyncWarps<kConsumers>(kConsumersBarrier);
}

// Columns [first, first + count) of the handed-over fp16 rows [rows][row_words], to x [rows][stride]. Zeros
// for rows that are not in `valid_rows`.
__device__ void CopyRows(const Block& block, const uint64_t* words, int row_words, int first, int count,
                         int stride, uint32_t valid_rows, uint32_t tag) {
  constexpr int kPairs = 4;                  // of words, that a thread polls at a time
  SyncWarps<kConsumers>(kConsumersBarrier);  // nobody reads the x before
  const int row_pairs = count / 4, pairs = block.rows * row_pairs;
  for (int begin = threadIdx.x; begin < pairs; begin += kPairs * kConsumers) {
    uint32_t values[2 * kPairs];
    const uint64_t* from[kPairs];
    bool wanted[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = begin + i * kConsumers, row = pair / row_pairs;
      wanted[i] = pair < pairs && (valid_rows >> row & 1) != 0;
      from[i] = words + static_cast<int64_t>(row) * row_words + first / 2 + pair % row_pairs * 2;
    }
    PollWords(
        values, tag, kWaitRows, [&](int i) { return wanted[i / 2]; },
        [&](int i) { return from[i / 2] + i % 2; });
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = begin + i * kConsumers, row = pair / row_pairs;
      if (pair < pairs)
        StoreShared64(block.x + (row * stride + pair % row_pairs * 4) * 2, values[2 * i], values[2 * i + 1]);
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

// Counts in shared memory, one a slot of sums: they only grow, so that nobody mistakes one use of a slot for
// another.
__device__ inline void AwaitCount(uint32_t counts, uint32_t unit, uint32_t count, int place) {
  const SpinGuard guard(place);
  while (LoadSharedAcquire(counts + unit % kSumSlots * 4) < count) guard.Turn();
}

// All chains of a phase that are this warp's. x has rows of `stride` elements: all of K, or the split chunk.
__device__ inline void Multiply(const Block& block, const MatrixShare share, int stride, int warp, int lane,
                                Progress* progress) {
  const int tasks = share.Tasks(), pieces = share.Pieces();
  const RowPlaces<1> rows(block.rows, stride * 2, lane);
  const Ring ring = block.ring;
#pragma unroll 1
  for (int first = 0; first < tasks; first += kConsumerWarps) {
    const int count = min(kConsumerWarps, tasks - first);
    if (warp < count) {
      const int task = first + warp, chunk = share.TaskChunk(task);
      uint32_t slice = block.x + (share.IsSplit() ? 0 : chunk * share.chunk_steps * kTileDepth * 2);
      FragmentC c{};
      uint32_t number = progress->piece + warp;
#pragma unroll 1
      for (int piece = 0; piece < pieces; ++piece) {
        ring.AwaitFull(number);
        MultiplyPiece(c, ring.Piece(number) + lane * 16, slice, rows);
        __syncwarp();
        if (lane == 0) ring.Release(number);
        number += count;
        slice += kPieceSteps * kTileDepth * 2;
      }
      const uint32_t unit = progress->unit + share.TaskUnit(task);
      AwaitCount(block.sums_taken, unit, unit / kSumSlots, kWaitSumSlot);
      StoreSums(c, block.Sums(unit) + (share.IsSplit() ? 0 : chunk * 8 * kSumStride), lane);
      __syncwarp();
      // kMaxDotChunks a unit, the missing ones by the last chunk's warp.
      const bool last = chunk == share.chunks - 1;
      if (lane == 0) {
        AddSharedRelease(block.sums_stored + unit % kSumSlots * 4, share.IsSplit() ? kMaxDotChunks
                                                                   : last          ? kMaxDotChunks - chunk
                                                                                   : 1);
      }
    }
    progress->piece += count * pieces;
  }
  progress->unit += share.units;
}

// The block's chunk of keys and one KV head, against the row that sees them.
template <int kDim>
class ChunkAttention {
 public:
  __device__ ChunkAttention(const DecodeLayersArgs& args, const Block& block, int warp, unsigned lane)
      : args_(args),
        block_(block),
        item_(*block.item),
        work_(WorkOf(args, block, static_cast<int>(lane))),
        warp_(warp),
        lane_(lane),
        queries_(block.x),
        shared_(reinterpret_cast<ChunkShared*>(__cvta_shared_to_generic(block.x + kQueryBytes))) {}

  // By kChunkWarps warps, when x is free. `first`: number of the first piece of keys.
  __device__ void Run(uint32_t tag, uint32_t first) const {
    const uint32_t values = first + KeyPieces<kDim>(work_);
    const bool two_rows = item_.num_virtual > 8;
    const float c = ScoreScale(kDim);
    TakeNewRows(tag, first, values);
    SyncWarps<kChunkThreads>(kAttentionBarrier);
    FragmentC scores[kChunkWarpKeys / 8];
    const bool has_keys = warp_ / kChunkWarpsPerTile < work_.num_tiles;
    if (has_keys) {
      const int key = warp_ * kChunkWarpKeys;
      block_.ring.AwaitFull(first + key / kPieceKeys<kDim>);
      ComputeScores<kDim>(Place(first, key), queries_, key, work_.num_keys, lane_, scores);
      StoreMaxima(scores, warp_, two_rows, lane_, shared_);
    }
    SyncWarps<kChunkThreads>(kAttentionBarrier);
    if (has_keys) StoreProbabilities(scores, warp_, two_rows, c, lane_, shared_);
    SyncWarps<kChunkThreads>(kAttentionBarrier);
    Release(first);
    ChunkState<kChunkWarpColumns / 8> state;
    if (warp_ * kChunkWarpColumns < kDim) {
      for (int piece = 0; piece < KeyPieces<kDim>(work_); ++piece) block_.ring.AwaitFull(values + piece);
      MultiplyValues<kDim>([&](int key) { return Place(values, key); }, *shared_, work_.num_tiles, warp_,
                           two_rows, c, lane_, &state);
      HandOver(tag, two_rows, c, state);
    }
    SyncWarps<kChunkThreads>(kAttentionBarrier);
    Release(values);
  }

  __device__ int Pieces() const { return 2 * KeyPieces<kDim>(work_); }

 private:
  static constexpr unsigned kPieces = kDim / kPieceHalves;
  static constexpr int kQueryBytes = kAttentionSplitRows * kDim * 2;

  __device__ uint32_t Place(uint32_t first, int key) const {
    return block_.ring.Piece(first + key / kPieceKeys<kDim>) + key % kPieceKeys<kDim> * kDim * 2;
  }

  __device__ void Release(uint32_t first) const {
    if (threadIdx.x == 0) {
      for (int piece = 0; piece < KeyPieces<kDim>(work_); ++piece) block_.ring.Release(first + piece);
    }
  }

  // Queries to their place, zeros behind them; this step's key and value, where they are of the chunk, among
  // the old ones.
  __device__ void TakeNewRows(uint32_t tag, uint32_t keys, uint32_t values) const {
    constexpr int kTurns = (kAttentionSplitRows * kDim / 2 + kDim + kChunkThreads - 1) / kChunkThreads;
    const DecodeLayersShape& shape = args_.shape;
    const int group = shape.num_heads / shape.num_kv_heads, query_words = group * (kDim / 2);
    const int new_key = item_.first_position - item_.chunk_begin * kAttentionChunk;
    const bool has_new = new_key < kAttentionChunk;
    const uint64_t* row = block_.words.qkv + static_cast<int64_t>(item_.first_row) * (block_.qkv_size / 2);
    for (int i = query_words + static_cast<int>(threadIdx.x); i < kAttentionSplitRows * (kDim / 2);
         i += kChunkThreads)
      StoreShared32(QueryPlace(i), 0);
    // Word i of queries, then key, then value.
    const int num_words = query_words + (has_new ? kDim : 0);
    const auto index = [&](int turn) { return static_cast<int>(threadIdx.x) + turn * kChunkThreads; };
    const auto address = [&](int turn) {
      const int i = index(turn), j = i - query_words, is_value = j / (kDim / 2);
      const int head = shape.num_heads + is_value * shape.num_kv_heads + work_.kv_head;
      return row + (j < 0 ? work_.kv_head * query_words + i : head * (kDim / 2) + j % (kDim / 2));
    };
    uint32_t words[kTurns];
    PollWords(
        words, tag, kWaitQueries, [&](int turn) { return index(turn) < num_words; }, address);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = index(turn);
      if (i < query_words) {
        StoreShared32(QueryPlace(i), words[turn]);
      } else if (i < num_words) {
        const int j = i - query_words;
        const uint32_t first = j < kDim / 2 ? keys : values;
        const unsigned key = new_key % kPieceKeys<kDim>, word = j % (kDim / 2);
        block_.ring.AwaitFull(first + new_key / kPieceKeys<kDim>);
        StoreShared32(block_.ring.Piece(first + new_key / kPieceKeys<kDim>) +
                          SwizzledOffset<kPieces>(key, word / 4) + word % 4 * 4,
                      words[turn]);
        FenceForBulkCopies();
      }
    }
  }

  __device__ uint32_t QueryPlace(int word) const {
    const unsigned row = word / (kDim / 2), column = word % (kDim / 2);
    return queries_ + SwizzledOffset<kPieces>(row, column / 4) + column % 4 * 4;
  }

  // A warp's columns of the chunk: to the block that folds, or the result where this is it.
  __device__ void HandOver(uint32_t tag, bool two_rows, float c,
                           const ChunkState<kChunkWarpColumns / 8>& state) const {
    uint64_t* const partial = block_.words.partials + blockIdx.x * PartialFloats(kDim);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int virtual_row = static_cast<int>(lane_ / 4) + 8 * row;
      if ((row == 1 && !two_rows) || virtual_row >= item_.num_virtual) continue;
      const int column = warp_ * kChunkWarpColumns + static_cast<int>(lane_ % 4) * 2;
      float out[4] = {state.out[0].x[2 * row], state.out[0].x[2 * row + 1], state.out[1].x[2 * row],
                      state.out[1].x[2 * row + 1]};
      float max = state.max[row], sum = state.sum.x[2 * row];
      if (item_.chunk_begin > 0) {
        uint64_t* to = partial + virtual_row * kDim + column;
        for (int i = 0; i < 4; ++i) PublishFloat(to + i / 2 * 8 + i % 2, out[i], tag);
        if (warp_ == 0 && lane_ % 4 == 0) {
          PublishFloat(partial + kAttentionSplitRows * kDim + virtual_row, max, tag);
          PublishFloat(partial + kAttentionSplitRows * (kDim + 1) + virtual_row, sum, tag);
        }
        continue;
      }
      FoldOthers(tag, virtual_row, column, c, &max, &sum, &out);
      uint64_t* to = block_.words.attention + static_cast<int64_t>(item_.first_row) * (block_.q_size / 2) +
                     ((work_.kv_head * item_.num_virtual + virtual_row) * kDim + column) / 2;
      for (int i = 0; i < 2; ++i) {
        const __half2 pair =
            SaturateToHalf2(__fdiv_rn(out[2 * i], sum), __fdiv_rn(out[2 * i + 1], sum), args_.saturations);
        PublishWord(to + i * 4, *reinterpret_cast<const uint32_t*>(&pair), tag);
      }
    }
  }

  // Chunks 1 .. of the row, in ascending order; they belong to the next items.
  __device__ void FoldOthers(uint32_t tag, int virtual_row, int column, float c, float* max, float* sum,
                             float (*out)[4]) const {
    constexpr int kChunks = 4;  // that are polled at a time
    const int64_t stride = args_.shape.num_kv_heads * PartialFloats(kDim);
    const uint64_t* const first_partial = block_.words.partials + blockIdx.x * PartialFloats(kDim);
    for (int begin = 1; begin < item_.num_partials; begin += kChunks) {
      uint32_t words[kChunks * 6];
      PollWords(
          words, tag, kWaitPartials, [&](int i) { return begin + i / 6 < item_.num_partials; },
          [&](int i) {
            const uint64_t* from = first_partial + (begin + i / 6) * stride;
            const int part = i % 6;
            return from + (part < 4 ? virtual_row * kDim + column + part / 2 * 8 + part % 2
                                    : kAttentionSplitRows * (kDim + part - 4) + virtual_row);
          });
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const float chunk_max = __uint_as_float(words[j * 6 + 4]);
        if (begin + j >= item_.num_partials || chunk_max == -INFINITY) continue;
        const FoldFactors factors = FoldRow(*max, chunk_max, c);
        *max = factors.max;
        *sum = FoldValue(*sum, __uint_as_float(words[j * 6 + 5]), factors);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          (*out)[i] = FoldValue((*out)[i], __uint_as_float(words[j * 6 + i]), factors);
      }
    }
  }

  const DecodeLayersArgs& args_;
  const Block& block_;
  const AttentionItem& item_;
  const ChunkWork work_;
  const int warp_;
  const unsigned lane_;
  const uint32_t queries_;
  ChunkShared* const shared_;
};

template <int kRounds, int kDim>
__device__ void Consume(const DecodeLayersArgs& args, const Block& block, int warp, int lane) {
  const int mlp = args.shape.mlp;
  // Rows that are only padding have no attention.
  uint32_t valid_rows = 0;
  for (int row = 0; row < block.rows; ++row) valid_rows |= args.rope.slots[row] >= 0 ? 1u << row : 0;
  const int split_columns = block.shares[kDown].chunk_steps * kTileDepth;
  const int split_first = block.shares[kDown].split_chunk * split_columns;
  Progress progress;
#pragma unroll 1
  for (int i = 0; i < args.shape.num_layers * kPhases; ++i) {  // code that stands once is fetched once
    const int layer = i / kPhases, phase = i % kPhases;
    const DecodeLayerWeights& weights = block.layers[layer];
    const uint32_t tag = block.tags.Of(layer);
    if (phase == kAttentionOutput && block.item != nullptr) {
      const ChunkAttention<kDim> attention(args, block, warp, static_cast<unsigned>(lane));
      SyncWarps<kConsumers>(kConsumersBarrier);  // nobody reads x
      if (warp < kChunkWarps) attention.Run(tag, progress.piece);
      progress.piece += attention.Pieces();
    }
    if (block.shares[phase].units == 0) continue;
    int columns = args.shape.hidden;
    if (phase == kQkv || phase == kGateUp) {
      NormWords<kRounds>(args, block, phase == kQkv ? block.words.input : block.words.middle, tag,
                         phase == kQkv ? weights.attention_norm : weights.mlp_norm);
    } else {
      const bool is_down = phase == kDown;
      columns = is_down ? split_columns : block.q_size;
      CopyRows(block, is_down ? block.words.gated : block.words.attention, (is_down ? mlp : block.q_size) / 2,
               is_down ? split_first : 0, columns, columns + kRowPad, is_down ? 0xFFFFFFFFu : valid_rows,
               tag);
    }
    Multiply(block, block.shares[phase], columns + kRowPad, warp, lane, &progress);
  }
}

// ---- The warps that finish.

// A lane's pair of rows of a tile, r and r + 8, and token.
struct Pair {
  int row;
  int token;
  bool valid;
};

__device__ inline Pair PairOf(const Block& block, int lane) {
  static_assert(kMaxDecodeLayersRows * 8 <= kWarpThreads);
  return {lane % 8, lane / 8, lane / 8 < block.rows};
}

// Calls finish(unit of the share, pair, low, high) for each unit that is this warp's, when its sums
// are there; before that prepare(unit, pair).
template <typename Prepare, typename Finish>
__device__ inline void FinishUnits(const Block& block, const MatrixShare share, int finisher, int lane,
                                   uint32_t first_unit, const Prepare& prepare, const Finish& finish) {
  const int chunks = share.IsSplit() ? 1 : share.chunks;
#pragma unroll 1
  for (int i = finisher; i < share.units; i += kFinishers) {
    const uint32_t unit = first_unit + i;
    const Pair pair = PairOf(block, lane);
    prepare(i, pair);
    AwaitCount(block.sums_stored, unit, (unit / kSumSlots + 1) * kMaxDotChunks, kWaitSums);
    float low = 0.0f, high = 0.0f;
    if (pair.valid)
      AddSums(block.Sums(unit) + pair.token * kSumStride + pair.row, chunks, 8 * kSumStride, &low, &high);
    __syncwarp();
    if (lane == 0) AddSharedRelease(block.sums_taken + unit % kSumSlots * 4, 1);
    finish(i, pair, low, high);
  }
}

// A lane's half and its neighbour's as a word; an odd lane's is the second.
__device__ inline uint32_t PackWithNeighbour(__half mine, __half others, int lane) {
  const uint32_t a = __half_as_ushort(mine), b = __half_as_ushort(others);
  return lane % 2 == 0 ? a | b << 16 : b | a << 16;
}

__device__ inline __half FromNeighbour(__half value) {
  return __ushort_as_half(static_cast<unsigned short>(
      __shfl_xor_sync(0xFFFFFFFFu, static_cast<uint32_t>(__half_as_ushort(value)), 1)));
}

// What the block's outputs of q, k and v need in every layer: computed once, with layer 0's KV memory and no
// bias.
__device__ void FindPlaces(const DecodeLayersArgs& args, const Block& block, int finisher, int lane) {
  const MatrixShare share = block.shares[kQkv];
  for (int i = finisher; i < share.units; i += kFinishers) {
    const Pair pair = PairOf(block, lane);
    if (!pair.valid) continue;
    block.places[(i * block.rows + pair.token) * 8 + pair.row] =
        FindRopePlace(nullptr, args.rope, args.rope.kv, pair.token, share.Tile(i) * kTileRows + pair.row);
  }
}

template <int kDim>
__device__ void FinishQkv(const DecodeLayersArgs& args, const Block& block, int layer, int finisher, int lane,
                          uint32_t first_unit) {
  const MatrixShare& share = block.shares[kQkv];
  const float* const bias = block.layers[layer].qkv_bias;
  float biases[2] = {};
  const auto prepare = [&](int unit, const Pair& pair) {
    if (bias == nullptr) return;
    biases[0] = bias[share.Tile(unit) * kTileRows + pair.row];
    biases[1] = bias[share.Tile(unit) * kTileRows + pair.row + 8];
  };
  FinishUnits(
      block, share, finisher, lane, first_unit, prepare,
      [&](int unit, const Pair& pair, float low, float high) {
        const int row = share.Tile(unit) * kTileRows + pair.row, head = row / kDim,
                  index = row % kDim / 16 * 8 + row % 8;
        RopePlace place{};
        if (pair.valid) place = block.places[(unit * block.rows + pair.token) * 8 + pair.row];
        place.bias[0] = biases[0];
        place.bias[1] = biases[1];
        const bool valid = place.out != nullptr;
        RotatePair(place, bias != nullptr, &low, &high);
        const __half first = SaturateToHalf(valid ? low : 0.0f, args.saturations);
        const __half second = SaturateToHalf(valid ? high : 0.0f, args.saturations);
        const __half other_first = FromNeighbour(first), other_second = FromNeighbour(second);
        if (!valid) return;
        // Even lanes hand over the lower half of the head, odd ones the upper.
        const bool odd = lane % 2 != 0;
        const uint32_t word = PackWithNeighbour(odd ? second : first, odd ? other_second : other_first, lane);
        const int offset = odd ? kDim / 2 - 1 : 0;  // of the word's first half from the lane's own
        PublishWord(
            block.words.qkv +
                (static_cast<int64_t>(pair.token) * block.qkv_size + head * kDim + index + offset) / 2,
            word, block.tags.Of(layer));
        if (head >= args.shape.num_heads)
          *reinterpret_cast<uint32_t*>(place.out + layer * args.kv_layer_stride + offset) = word;
      });
}

__device__ inline void PublishPair(uint64_t* row, int column, float low, float high, uint32_t tag) {
  PublishFloat(row + column, low, tag);
  PublishFloat(row + column + 8, high, tag);
}

__device__ inline void Nothing(int, const Pair&) {}

__device__ void FinishAttentionOutput(const Block& block, int hidden, uint32_t tag, int finisher, int lane,
                                      uint32_t first_unit) {
  const MatrixShare& share = block.shares[kAttentionOutput];
  FinishUnits(block, share, finisher, lane, first_unit, Nothing,
              [&](int unit, const Pair& pair, float low, float high) {
                if (!pair.valid) return;
                float* residual = block.residual + (unit * block.rows + pair.token) * kTileRows + pair.row;
                residual[0] = __fadd_rn(residual[0], low);
                residual[8] = __fadd_rn(residual[8], high);
                PublishPair(block.words.middle + static_cast<int64_t>(pair.token) * hidden,
                            share.Tile(unit) * kTileRows + pair.row, residual[0], residual[8], tag);
              });
}

__device__ void FinishGateUp(const DecodeLayersArgs& args, const Block& block, uint32_t tag, int finisher,
                             int lane, uint32_t first_unit) {
  const MatrixShare& share = block.shares[kGateUp];
  FinishUnits(block, share, finisher, lane, first_unit, Nothing,
              [&](int unit, const Pair& pair, float low, float high) {
                const __half value = SaturateToHalf(SiluMul(low, high), args.saturations);
                const __half other = FromNeighbour(value);
                if (!pair.valid || lane % 2 != 0) return;
                const int column = share.Tile(unit) * (kTileRows / 2) + pair.row;
                PublishWord(
                    block.words.gated + (static_cast<int64_t>(pair.token) * args.shape.mlp + column) / 2,
                    PackWithNeighbour(value, other, lane), tag);
              });
}

__device__ void FinishDown(const Block& block, int hidden, uint32_t tag, int finisher, int lane,
                           uint32_t first_unit) {
  const MatrixShare& share = block.shares[kDown];
  FinishUnits(block, share, finisher, lane, first_unit, Nothing,
              [&](int unit, const Pair& pair, float low, float high) {
                if (!pair.valid) return;
                const int64_t row = int64_t{share.split_chunk} * kMaxDecodeLayersRows + pair.token;
                PublishPair(block.words.down + row * hidden, share.Tile(unit) * kTileRows + pair.row, low,
                            high, tag);
              });
}

// The residual stream's tiles that are the block's own: the first value, from the embedding.
__device__ void StartResidual(const DecodeLayersArgs& args, const Block& block, int finisher, int lane) {
  const MatrixShare share = block.shares[kAttentionOutput];
  const int hidden = args.shape.hidden;
  for (int i = finisher; i < share.units; i += kFinishers) {
    const Pair pair = PairOf(block, lane);
    if (!pair.valid) continue;
    int32_t token = args.tokens[pair.token];
    if (token < 0) token = args.last_tokens[-1 - token];
    const int column = share.Tile(i) * kTileRows + pair.row;
    float* residual = block.residual + (i * block.rows + pair.token) * kTileRows + pair.row;
    residual[0] = __half2float(__ushort_as_half(args.embedding[PackedIndex(token, column, hidden)]));
    residual[8] = __half2float(__ushort_as_half(args.embedding[PackedIndex(token, column + 8, hidden)]));
    PublishPair(block.words.input + static_cast<int64_t>(pair.token) * hidden, column, residual[0],
                residual[8], block.tags.Of(0));
  }
}

// Adds the down projection's chunks, handed over in layer `layer`.
__device__ void AddDown(const DecodeLayersArgs& args, const Block& block, int layer, int finisher, int lane) {
  const MatrixShare share = block.shares[kAttentionOutput];
  const int hidden = args.shape.hidden, chunks = block.shares[kDown].chunks;
  const bool last = layer == args.shape.num_layers - 1;
#pragma unroll 1
  for (int i = finisher; i < share.units; i += kFinishers) {
    const Pair pair = PairOf(block, lane);
    if (!pair.valid) continue;
    const int column = share.Tile(i) * kTileRows + pair.row;
    const uint64_t* from = block.words.down + static_cast<int64_t>(pair.token) * hidden + column;
    uint32_t words[2 * kMaxDotChunks];
    PollWords(
        words, block.tags.Of(layer), kWaitDown, [&](int j) { return j / 2 < chunks; },
        [&](int j) { return from + int64_t{j / 2} * kMaxDecodeLayersRows * hidden + j % 2 * 8; });
    float low = __uint_as_float(words[0]), high = __uint_as_float(words[1]);
#pragma unroll
    for (int chunk = 1; chunk < kMaxDotChunks; ++chunk) {
      if (chunk >= chunks) break;
      low = __fadd_rn(low, __uint_as_float(words[2 * chunk]));
      high = __fadd_rn(high, __uint_as_float(words[2 * chunk + 1]));
    }
    float* residual = block.residual + (i * block.rows + pair.token) * kTileRows + pair.row;
    residual[0] = __fadd_rn(residual[0], low);
    residual[8] = __fadd_rn(residual[8], high);
    const int64_t row = static_cast<int64_t>(pair.token) * hidden;
    if (last) {
      args.residual[row + column] = residual[0];
      args.residual[row + column + 8] = residual[8];
    } else {
      PublishPair(block.words.input + row, column, residual[0], residual[8], block.tags.Of(layer + 1));
    }
  }
}

// Each of the warps takes every kFinishers'th unit; a tile of the residual stream is always the
// same warp's.
template <int kDim>
__device__ void FinishLayers(const DecodeLayersArgs& args, const Block& block, int finisher, int lane) {
  const int hidden = args.shape.hidden;
  StartResidual(args, block, finisher, lane);
  FindPlaces(args, block, finisher, lane);
  __syncwarp();
  uint32_t unit = 0;
  for (int layer = 0; layer < args.shape.num_layers; ++layer) {
    const uint32_t tag = block.tags.Of(layer);
    FinishQkv<kDim>(args, block, layer, finisher, lane, unit);
    unit += block.shares[kQkv].units;
    FinishAttentionOutput(block, hidden, tag, finisher, lane, unit);
    unit += block.shares[kAttentionOutput].units;
    FinishGateUp(args, block, tag, finisher, lane, unit);
    unit += block.shares[kGateUp].units;
    FinishDown(block, hidden, tag, finisher, lane, unit);
    unit += block.shares[kDown].units;
    AddDown(args, block, layer, finisher, lane);
  }
}

// What of the step is this block's. By one thread.
__device__ void SetWork(const DecodeLayersArgs& args, Block* block, AttentionItem* item) {
  const DecodeLayersShape& shape = args.shape;
  const int blocks = static_cast<int>(gridDim.x), index = static_cast<int>(blockIdx.x);
  // Launches follow one another: how many blocks have started, over all of them, says which launch this is.
  const uint64_t launch = atomicAdd(static_cast<unsigned long long*>(args.workspace), 1ull) / gridDim.x;
  block->tags.first = static_cast<uint32_t>(launch) * static_cast<uint32_t>(shape.num_layers + 1) + 1;
  block->words = WordsOf(args.workspace, shape, blocks);
  block->rows = args.rope.num_rows;
  block->q_size = shape.num_heads * shape.head_dim;
  block->qkv_size = block->q_size + 2 * shape.num_kv_heads * shape.head_dim;
  block->shares[kQkv] = ShareOf(block->qkv_size, shape.hidden, index, blocks);
  block->shares[kAttentionOutput] = ShareOf(shape.hidden, block->q_size, blocks - 1 - index, blocks);
  block->shares[kGateUp] = ShareOf(2 * shape.mlp, shape.hidden, index, blocks);
  block->shares[kDown] = SplitShareOf(shape.hidden, shape.mlp, index, blocks);
  const bool has_item = index < *args.work.num_items * shape.num_kv_heads;
  if (has_item) *item = args.work.items[index / shape.num_kv_heads];
  block->item = has_item ? item : nullptr;
}

#endif  // __CUDA_ARCH__ >= 900

template <int kRounds, int kDim>
__global__ void __launch_bounds__(kDecodeLayersThreads, 1)
    DecodeLayersKernel(const __grid_constant__ DecodeLayersArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[2 * kRingSlots];
  __shared__ float norm_sums[kMaxDecodeLayersRows * kNormHalves];
  __shared__ uint32_t counts[2 * kSumSlots];
  __shared__ AttentionItem item;
  __shared__ Block block;
  const DecodeLayersShape& shape = args.shape;
  const DecodeLayersLayout layout =
      LayoutOfDecodeLayers(args.rope.num_rows, shape, static_cast<int>(gridDim.x));
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const Ring ring = {SharedAddress(shared), SharedAddress(barriers)};
  DecodeLayerWeights* layers = reinterpret_cast<DecodeLayerWeights*>(shared + layout.layers);
  if (threadIdx.x == 0) {
    ring.Init();
    for (uint32_t& count : counts) count = 0;
    FenceBarrierInit();
  }
  if (warp == 1) {
    const uint64_t* from = reinterpret_cast<const uint64_t*>(args.layers);
    const int words = shape.num_layers * static_cast<int>(sizeof(DecodeLayerWeights) / 8);
    for (int i = lane; i < words; i += kWarpThreads) reinterpret_cast<uint64_t*>(layers)[i] = from[i];
  }
  WaitForPriorKernel();
  LaunchNextKernel();
  if (threadIdx.x == 2 * kWarpThreads) {
    block.layers = layers;
    block.ring = ring;
    block.x = SharedAddress(shared + layout.x);
    block.sums = reinterpret_cast<float*>(shared + layout.sums);
    block.sum_floats = layout.sum_chunks * 8 * kSumStride;
    block.sums_stored = SharedAddress(counts);
    block.sums_taken = SharedAddress(counts + kSumSlots);
    block.places = reinterpret_cast<RopePlace*>(shared + layout.places);
    block.residual = reinterpret_cast<float*>(shared + layout.residual);
    block.norm_sums = norm_sums;
    SetWork(args, &block, &item);
  }
  __syncthreads();
  if (warp < kConsumerWarps) {
    Consume<kRounds, kDim>(args, block, warp, lane);
  } else if (warp == kProducer) {
    FillRing<kDim>(args, block, lane);
  } else {
    FinishLayers<kDim>(args, block, warp - kProducer - 1, lane);
  }
#endif
}

using Kernel = void (*)(DecodeLayersArgs);

// By rounds of the norm (1, 2), and by head_dim (64, 128).
constexpr Kernel kKernels[2][2] = {{DecodeLayersKernel<1, 64>, DecodeLayersKernel<1, 128>},
                                   {DecodeLayersKernel<2, 64>, DecodeLayersKernel<2, 128>}};

}  // namespace

cudaError_t PrepareDecodeLayers() {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (const auto& kernels : kKernels) {
    for (Kernel kernel : kernels) {
      cudaFuncAttributes attributes{};
      if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
      if (error != cudaSuccess) return error;
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   shared - static_cast<int>(attributes.sharedSizeBytes));
    }
  }
  return error;
}

cudaError_t LaunchDecodeLayers(const DecodeLayersPlan& plan, const DecodeLayersArgs& args,
                               cudaStream_t stream) {
  if (!plan.possible) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(kDecodeLayersThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kKernels[plan.norm_rounds - 1][args.shape.head_dim / 128], args);
}

}  // namespace ridge::kernels::cuda
