// A chunk of keys against one decode row's queries, by eight warps with all keys and values in shared memory:
// how the kernels that decode few rows cut it. Warp w computes the scores of keys 32 w .. 32 w + 31, then
// columns 16 w .. of O over all keys, in ascending order.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace ridge::kernels::cuda {

inline constexpr int kChunkWarps = 8;
inline constexpr int kChunkWarpKeys = kAttentionChunk / kChunkWarps;
inline constexpr int kChunkWarpsPerTile = kAttentionTile / kChunkWarpKeys;
inline constexpr int kChunkWarpColumns = 16;

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

}  // namespace ridge::kernels::cuda
