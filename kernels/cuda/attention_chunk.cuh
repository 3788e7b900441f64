// A chunk of keys against one decode row's queries, by eight warps with all keys and values in shared memory:
// what the kernels that decode few rows share, and with it the bits. Warp w computes the scores of keys 32 w
// .. 32 w + 31, then columns 16 w .. of O over all keys, in ascending order.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace ridge::kernels::cuda {

inline constexpr int kChunkWarps = 8;
inline constexpr int kChunkWarpKeys = kAttentionChunk / kChunkWarps;
inline constexpr int kChunkWarpsPerTile = kAttentionTile / kChunkWarpKeys;
inline constexpr int kChunkWarpColumns = 16;

// What the warps tell each other.
struct alignas(16) ChunkShared {
  FragmentA probabilities[kAttentionChunk / 16][kWarpThreads];
  float maxima[kChunkWarps][kAttentionSplitRows];
};

// What a block works on.
struct ChunkWork {
  int kv_head;
  int num_keys;   // of the chunk that the row sees; above kAttentionChunk where there are more behind it
  int num_pages;  // of the chunk
  int old_pages;  // of them, those that this step does not write
  int num_tiles;  // of the chunk
  int32_t block;  // lane i has the block of page i
};

__device__ inline ChunkWork MakeChunkWork(const int32_t* block_tables, int32_t table_stride,
                                          const AttentionItem& item, int kv_head, int lane) {
  constexpr int kChunkPages = kAttentionChunk / kKvBlockTokens, kTilePages = kAttentionTile / kKvBlockTokens;
  ChunkWork work;
  const int first_page = item.chunk_begin * kChunkPages;
  work.kv_head = kv_head;
  work.num_keys = item.num_keys - item.chunk_begin * kAttentionChunk;
  work.num_pages = min(kChunkPages, (work.num_keys + kKvBlockTokens - 1) / kKvBlockTokens);
  work.old_pages = min(work.num_pages, max(item.first_position / kKvBlockTokens - first_page, 0));
  work.num_tiles = (work.num_pages + kTilePages - 1) / kTilePages;
  const int32_t* table = block_tables + static_cast<int64_t>(item.table_row) * table_stride;
  work.block = lane < work.num_pages ? table[first_page + lane] : 0;
  return work;
}

// The scores of a warp's keys, of which the first is the chunk's `first_key` and stands at `keys`; masked.
template <int kDim>
__device__ inline void ComputeScores(uint32_t keys, uint32_t queries, int first_key, int num_keys,
                                     unsigned lane, FragmentC (&scores)[kChunkWarpKeys / 8]) {
  constexpr unsigned kPieces = kDim / kPieceHalves;
#pragma unroll
  for (int i = 0; i < kChunkWarpKeys / 8; ++i) scores[i] = {};
#pragma unroll 4
  for (int step = 0; step < kDim / 16; ++step) {
    FragmentA q;
    LoadMatrices(q.x, queries + SwizzledOffset<kPieces>(lane % 16, 2 * step + lane / 16));
    FragmentB b[kChunkWarpKeys / 16][2];
#pragma unroll
    for (int i = 0; i < kChunkWarpKeys / 16; ++i) LoadKeys<kPieces>(b[i], keys, 16 * i, step, lane);
#pragma unroll
    for (int i = 0; i < kChunkWarpKeys / 8; ++i) Mma(scores[i], q, b[i / 2][i % 2]);
  }
  if (first_key + kChunkWarpKeys <= num_keys) return;
  const int last_keys[2] = {num_keys - 1, num_keys - 1};
#pragma unroll
  for (int i = 0; i < kChunkWarpKeys / 8; ++i) MaskScores(scores[i], first_key + 8 * i, last_keys, lane);
}

__device__ inline void StoreMaxima(const FragmentC (&scores)[kChunkWarpKeys / 8], int warp, bool two_rows,
                                   unsigned lane, ChunkShared* shared) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (row == 1 && !two_rows) break;
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kChunkWarpKeys / 8; ++i)
      max = fmaxf(max, fmaxf(scores[i].x[2 * row], scores[i].x[2 * row + 1]));
    max = RowMax(max);
    if (lane % 4 == 0) shared->maxima[warp][lane / 4 + 8 * row] = max;
  }
}

// The maxima after a tile.
__device__ inline void TakeTileMaxima(const ChunkShared& shared, int tile, bool two_rows, unsigned lane,
                                      float (&max)[2]) {
#pragma unroll
  for (int warp = 0; warp < kChunkWarpsPerTile; ++warp) {
    const float* maxima = shared.maxima[tile * kChunkWarpsPerTile + warp];
    max[0] = fmaxf(max[0], maxima[lane / 4]);
    if (two_rows) max[1] = fmaxf(max[1], maxima[lane / 4 + 8]);
  }
}

// P of this warp's keys to shared memory.
__device__ inline void StoreProbabilities(const FragmentC (&scores)[kChunkWarpKeys / 8], int warp,
                                          bool two_rows, float c, unsigned lane, ChunkShared* shared) {
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int tile = 0; tile <= warp / kChunkWarpsPerTile; ++tile)
    TakeTileMaxima(*shared, tile, two_rows, lane, max);
#pragma unroll
  for (int s = 0; s < kChunkWarpKeys / 16; ++s) {
    FragmentA p = {};
    p.x[0] = Probabilities(scores[2 * s].x[0], scores[2 * s].x[1], max[0], c);
    p.x[2] = Probabilities(scores[2 * s + 1].x[0], scores[2 * s + 1].x[1], max[0], c);
    if (two_rows) {
      p.x[1] = Probabilities(scores[2 * s].x[2], scores[2 * s].x[3], max[1], c);
      p.x[3] = Probabilities(scores[2 * s + 1].x[2], scores[2 * s + 1].x[3], max[1], c);
    }
    shared->probabilities[warp * (kChunkWarpKeys / 16) + s][lane] = p;
  }
}

// `place(key)`: where the values of 16 keys from that one on stand.
template <int kDim, typename Place>
__device__ inline void MultiplyValues(const Place& place, const ChunkShared& shared, int num_tiles, int warp,
                                      bool two_rows, float c, unsigned lane,
                                      ChunkState<kChunkWarpColumns / 8>* state) {
  state->Start();
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    TakeTileMaxima(shared, tile, two_rows, lane, max);
    state->Rescale(max, c);
#pragma unroll
    for (int s = 0; s < kAttentionTile / 16; ++s) {
      const FragmentA p = shared.probabilities[tile * (kAttentionTile / 16) + s][lane];
      FragmentB b[2];
      LoadValues<kDim / kPieceHalves>(b, place(tile * kAttentionTile + 16 * s), 0, warp, lane);
      Mma(state->out[0], p, b[0]);
      Mma(state->out[1], p, b[1]);
      Mma(state->sum, p, Ones());
    }
  }
}

}  // namespace ridge::kernels::cuda
