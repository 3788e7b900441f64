// How the decode-layers kernel cuts its work and its memory: the same arithmetic on host and device.
#pragma once

#include "kernels/cuda/attention_chunk.cuh"
#include "kernels/cuda/decode_layers.h"
#include "kernels/cuda/matmul_few_rows.cuh"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/weight_ring.cuh"
#include "kernels/order.h"

namespace ridge::kernels::cuda {

inline constexpr int kConsumerWarps = 12;
inline constexpr int kConsumers = kConsumerWarps * kWarpThreads;
inline constexpr int kFinishers = 3;
inline constexpr int kDecodeLayersThreads = kConsumers + (1 + kFinishers) * kWarpThreads;
inline constexpr int kPieceSteps = kPieceSize / (kTileSize * 2);
// Chunks of K that a matmul may have (order.h).
inline constexpr int kMaxDotChunks = 8;
inline constexpr int kSumSlots = 6;
// Of shared memory from which others' words are armed.
inline constexpr int kArmedBytes = 512;
// Norm: half a warp a group of 256 columns of a row.
inline constexpr int kNormHalves = kConsumers / kVirtualLanes;
// Columns of the residual stream that the kernel takes, four a multiplying thread, and of x: of K, or of a
// chunk of the split matrix. Rows of both are so far apart whatever the shape.
inline constexpr int kMaxHidden = 4 * kConsumers, kMaxColumns = 1792;
inline constexpr int kXStride = (kMaxColumns + kRowPad) * 2;  // bytes

// The kernel is made for at most 1, 2 and 4 rows: slots of the ring that x and the sums leave.
__host__ __device__ constexpr int RingSlots(int max_rows) {
  return max_rows == 1 ? 26 : max_rows == 2 ? 25 : 23;
}

__host__ __device__ constexpr int CeilDivide(int a, int b) {
  return (a + b - 1) / b;
}

__host__ __device__ constexpr int DotChunks(int k) {
  return CeilDivide(k, static_cast<int>(DotChunk(k)));
}

// What one block does of one matrix: tiles first, first + stride, ... Whole: a unit is a tile with all its
// chunks, which meet in shared memory. Split: a unit is one tile and one chunk, and its sums go to other
// blocks.
struct MatrixShare {
  int depth;        // k steps of the matrix
  int chunk_steps;  // of a chunk
  int chunks;
  int first;
  int stride;
  int units;
  int split_chunk;  // negative: whole
  int reciprocal;   // of chunks: 2^16 / chunks, rounded up; exact for the tasks that a block has

  __host__ __device__ bool IsSplit() const { return split_chunk >= 0; }
  // Tasks are chains: one chunk of one tile each. A warp takes every kConsumerWarps'th.
  __host__ __device__ int Tasks() const { return IsSplit() ? units : units * chunks; }
  __host__ __device__ int TaskUnit(int task) const { return IsSplit() ? task : task * reciprocal >> 16; }
  __host__ __device__ int TaskChunk(int task) const {
    return IsSplit() ? split_chunk : task - TaskUnit(task) * chunks;
  }
  __host__ __device__ int Tile(int unit) const { return first + unit * stride; }
  // Pieces of a task: chunks are whole pieces, and all of one length (the plan sees to it).
  __host__ __device__ int Pieces() const { return chunk_steps / kPieceSteps; }
};

__host__ __device__ inline MatrixShare ShareOf(int n, int k, int first, int blocks) {
  MatrixShare share;
  share.depth = k / kTileDepth;
  share.chunk_steps = static_cast<int>(DotChunk(k)) / kTileDepth;
  share.chunks = DotChunks(k);
  share.first = first;
  share.stride = blocks;
  share.units = first < n / kTileRows ? CeilDivide(n / kTileRows - first, blocks) : 0;
  share.split_chunk = -1;
  share.reciprocal = CeilDivide(1 << 16, share.chunks);
  return share;
}

// Of the down projection, each chunk belongs to as many blocks.
__host__ __device__ inline MatrixShare SplitShareOf(int n, int k, int block, int blocks) {
  const int chunks = DotChunks(k), chunk = block * chunks / blocks;
  const int begin = CeilDivide(chunk * blocks, chunks), end = CeilDivide((chunk + 1) * blocks, chunks);
  MatrixShare share = ShareOf(n, k, end - 1 - block, end - begin);
  share.split_chunk = chunk;
  return share;
}

// Query heads of a KV head that the kernel takes: the n8 operand's columns.
inline constexpr int kMaxAttentionGroup = 8;

// What a chunk's warps tell each other.
struct ChunkExchange {
  uint4 probabilities[kChunkWarps][kWarpThreads];  // of a warp's 32 keys, as the n8 operand
  float maxima[kChunkWarps][kMaxAttentionGroup];   // of a warp's keys
};
template <int kDim>
inline constexpr int kQueryBytes = kMaxAttentionGroup* kDim * 2;

// A chunk of keys that is to be folded with others: O [kMaxAttentionGroup][dim], columns g and g + 8 of 16
// together, then m and l of each query.
__host__ __device__ constexpr int PartialWords(int head_dim) {
  return kMaxAttentionGroup * (head_dim + 2);
}
template <int kDim>
inline constexpr int kPartialWords = PartialWords(kDim);

// Where everything stands in a block's shared memory, in bytes.
struct DecodeLayersLayout {
  int x;          // rows of fp16 or fp32, or attention's queries and ChunkExchange
  int sums;       // [kSumSlots][chunks][sum_tokens][kSumStride] floats
  int residual;   // [owned tiles][rows][16] floats
  int layers;     // [num_layers] DecodeLayerWeights
  int places;     // [qkv units][rows][8] RopePlace
  int pieces;     // [pieces of a layer] uint32_t
  int all_armed;  // kArmedBytes
  int bytes;
  int sum_chunks;  // of a slot of sums
  int sum_tokens;  // of the kernel's rows, at least a lane's two
};

__host__ __device__ inline DecodeLayersLayout LayoutOfDecodeLayers(int max_rows,
                                                                   const DecodeLayersShape& shape,
                                                                   int blocks) {
  const auto larger = [](int a, int b) { return a > b ? a : b; };
  const auto aligned = [](int bytes) { return (bytes + 127) / 128 * 128; };
  const int q_size = shape.num_heads * shape.head_dim;
  const int attention = kMaxAttentionGroup * shape.head_dim * 2 + static_cast<int>(sizeof(ChunkExchange));
  DecodeLayersLayout layout;
  layout.sum_chunks = larger(DotChunks(shape.hidden), DotChunks(q_size));
  layout.sum_tokens = larger(max_rows, 2);
  layout.x = RingSlots(max_rows) * kPieceSize;
  const int norm = max_rows * kMaxHidden * 4;
  layout.sums = layout.x + aligned(larger(larger(max_rows * kXStride + kBeyondRows, norm), attention));
  layout.residual = layout.sums + kSumSlots * layout.sum_chunks * layout.sum_tokens * kSumStride * 4;
  layout.layers =
      layout.residual + aligned(CeilDivide(shape.hidden / kTileRows, blocks) * max_rows * kTileRows * 4);
  layout.places = layout.layers + aligned(shape.num_layers * static_cast<int>(sizeof(DecodeLayerWeights)));
  const int qkv_tiles = (q_size + 2 * shape.num_kv_heads * shape.head_dim) / kTileRows;
  layout.pieces = layout.places +
                  aligned(CeilDivide(qkv_tiles, blocks) * max_rows * 8 * static_cast<int>(sizeof(RopePlace)));
  // The most that a block may have of each matrix.
  const auto pieces = [&](int n, int k) {
    return CeilDivide(n / kTileRows, blocks) * CeilDivide(k, kPieceSteps * kTileDepth);
  };
  const int split = CeilDivide(shape.hidden / kTileRows, blocks / DotChunks(shape.mlp)) *
                    CeilDivide(static_cast<int>(DotChunk(shape.mlp)), kPieceSteps * kTileDepth);
  layout.all_armed =
      layout.pieces + aligned((pieces(qkv_tiles * kTileRows, shape.hidden) + pieces(shape.hidden, q_size) +
                               pieces(2 * shape.mlp, shape.hidden) + split) *
                              4);
  layout.bytes = layout.all_armed + kArmedBytes;
  return layout;
}

// What the workspace begins with.
struct DecodeLayersState {
  unsigned long long started;  // blocks, over all launches
  int32_t rows[2];             // of the last launch that used each set of armed words
};

// A row's armed words (handover.cuh) of a layer.
enum ArmedPlace {
  kArmedInput = 0,                                  // [hidden]: fp32, the residual stream before attention
  kArmedMiddle = kArmedInput + kMaxHidden,          // [hidden]: fp32, before the MLP
  kArmedAttention = kArmedMiddle + kMaxHidden,      // [q / 2]: two fp16
  kArmedGated = kArmedAttention + kMaxColumns / 2,  // [chunks of mlp][kMaxColumns / 2]: two fp16
  kArmedRow = kArmedGated + kMaxDotChunks * kMaxColumns / 2
};

// The workspace: state, tagged words, and two sets of armed words that launches use in turn, each for the
// layers one after the other. A launch arms the words that the one before it wrote.
struct DecodeLayersWords {
  DecodeLayersState* state;
  uint64_t* qkv;         // [kMaxDecodeLayersRows][(q + 2 kv) / 2]: two fp16 each
  uint64_t* down;        // [chunks][kMaxDecodeLayersRows][hidden]: fp32 sums of a chunk
  uint64_t* partials;    // [blocks][PartialWords]: fp32, a chunk of keys
  int64_t tagged_bytes;  // with the state
  uint32_t* armed;       // [2][layers][kMaxDecodeLayersRows][kArmedRow]
  int64_t armed_bytes;
};

__host__ __device__ inline DecodeLayersWords WordsOf(void* workspace, const DecodeLayersShape& shape,
                                                     int blocks) {
  constexpr int64_t kRows = kMaxDecodeLayersRows;
  int64_t words = 16;
  const auto take = [&](int64_t count) {
    uint64_t* place = static_cast<uint64_t*>(workspace) + words;
    words += (count + 15) / 16 * 16;
    return place;
  };
  const int q_size = shape.num_heads * shape.head_dim;
  DecodeLayersWords all;
  all.state = static_cast<DecodeLayersState*>(workspace);
  all.qkv = take(kRows * (q_size / 2 + int64_t{shape.num_kv_heads} * shape.head_dim));
  all.down = take(DotChunks(shape.mlp) * kRows * shape.hidden);
  all.partials = take(int64_t{blocks} * PartialWords(shape.head_dim));
  all.tagged_bytes = words * 8;
  all.armed = reinterpret_cast<uint32_t*>(take(0));
  all.armed_bytes = 2 * kRows * shape.num_layers * kArmedRow * 4;
  return all;
}

}  // namespace ridge::kernels::cuda
