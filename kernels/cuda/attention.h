// Attention of a step's rows over paged KV: decode rows and chunks of prefills together.
//
// The host cuts the work of a step into items (attention_plan.h), the same for all layers; three kernels take
// them. AttentionSplit has one tile of at most 16 rows x heads a block and may share the keys of a tile among
// blocks; AttentionChunk has one decode row and one chunk of its keys a block, where there are few;
// AttentionPrefill has 128 rows x heads a block and all their keys. All give the same bits.
//
// The arithmetic, for query head h of KV head h / group and the row at position p, over keys 0 .. p, with
// c = fp32(log2(e) / sqrt(d)):
//   keys are cut into chunks of kAttentionChunk from position 0; each starts with m = -inf, l = 0, O = 0;
//   per tile of 64 keys: S by one chain of mma.m16n8k16 over d; m' = max(m, max S);
//     where m' > m: alpha = 2^fma(m, c, -(m' c)), l *= alpha, O *= alpha; elsewhere neither is touched;
//     P = fp16(2^fma(S, c, -(m' c))), masked keys 0; O and l go on as chains of mma.m16n8k16 over the keys, l
//     with a column of ones;
//   chunks are folded in ascending order: M' = max(M, m); a = 2^fma(M, c, -(M' c)), b = 2^fma(m, c, -(M' c));
//     L = fma(L, a, l b); A = fma(A, a, O b). Chunks that lie wholly behind p are left out;
//   out = fp16(A / L).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kv_layer.h"
#include "kernels/half.h"

namespace ridge::kernels::cuda {

// Rows x heads of one KV head in a tile of AttentionSplit and of AttentionPrefill.
inline constexpr int32_t kAttentionSplitRows = 16;
inline constexpr int32_t kAttentionPrefillRows = 128;
// AttentionPrefill's wgmma form has tiles of so many, too, which end sooner where there are few.
inline constexpr int32_t kAttentionSmallPrefillRows = 64;

// A tile of one sequence's rows and some chunks of their keys; every KV head takes it. Within a KV head of
// `group` query heads, "virtual row" v is row v / group of the run and head v % group of the group.
struct AttentionItem {
  int32_t first_row;       // the run's row 0 in the step
  int32_t first_position;  // of the run's row 0
  int32_t first_virtual;   // the tile's virtual rows
  int32_t num_virtual;
  int32_t num_keys;     // that the tile's last row sees
  int32_t num_read;     // num_keys or more: the keys behind are read and computed, and left out
  int32_t table_row;    // row of block_tables (the slot)
  int32_t chunk_begin;  // of the keys that are read, [chunk_begin, chunk_end) * kAttentionChunk
  int32_t chunk_end;
  // Where the tile's keys are shared among items: the first item (chunk_begin 0) folds its chunks into
  // partial 0 of the tile, every other writes each of its chunks to one of its own; the item that ends last
  // folds the partials in ascending order.
  int32_t tile_partial;   // partial 0 of the tile
  int32_t first_partial;  // of this item
  int32_t num_partials;   // of the tile; 1: not shared
  int32_t num_items;      // of the tile; 0: nobody folds its partials (AttentionChunk's alone)
  int32_t counter;        // counts the tile's items that are done
  int32_t next;  // the item that the same blocks take after this one; -1: none. AttentionPrefill has a block
                 // for each
};

// What the kernels of a step read from device memory: uploaded with each step, so that a captured graph
// serves them all.
struct AttentionWork {
  const AttentionItem* items;  // [num_items]; AttentionSplit's block b begins with item b / num_kv_heads
  const int32_t* num_items;    // [1]
};

struct AttentionArgs {
  const Half* q;                // [rows][num_heads head_dim], like out aligned to 16 bytes
  Half* out;                    // [rows][num_heads head_dim]
  const int32_t* block_tables;  // [slots][table_stride]
  int32_t table_stride;
  KvLayer kv;
  int32_t num_heads;
  int32_t num_kv_heads;  // num_heads / num_kv_heads in 1 .. 16
  int32_t head_dim;      // a multiple of 16, at most 256
  // AttentionSplit's: AttentionPartialBytes(max partials of the plan, ...) and AttentionCounterBytes(max
  // shared tiles of the plan, ...). The counters are zero before the first launch, and after every one.
  float* partials;
  int32_t* counters;
  unsigned long long* saturations;
};

size_t AttentionPartialBytes(int32_t max_partials, int32_t num_kv_heads, int32_t head_dim);
size_t AttentionCounterBytes(int32_t max_shared_tiles, int32_t num_kv_heads);

// Blocks of AttentionSplit that are resident at once on a card with `num_sms` multiprocessors: the launch's
// `num_blocks`, and what the plan shares the work among.
[[nodiscard]] cudaError_t AttentionSplitBlocks(int32_t head_dim, int32_t num_sms, int32_t* num_blocks);

// With the `num_blocks` that the plan knows. As a dependent launch it reads items, block tables and keys of
// earlier steps while kernels before it may still run: none of those that may writes them (a step's uploads
// have ended when its first matmul starts).
[[nodiscard]] cudaError_t LaunchAttentionSplit(const AttentionArgs& args, const AttentionWork& work,
                                               int32_t num_blocks, cudaStream_t stream);

// Items of one chunk and one row of a sequence (first_virtual 0, num_read num_keys), in up to `num_blocks` /
// num_kv_heads. head_dim 64 or 128 only. Reads early what LaunchAttentionSplit reads early.
[[nodiscard]] cudaError_t LaunchAttentionChunk(const AttentionArgs& args, const AttentionWork& work,
                                               int32_t num_blocks, cudaStream_t stream);

// Of a block; more than any card has where there is no such kernel.
int32_t AttentionChunkSharedBytes(int32_t head_dim);

// head_dim 64 or 128 only (the plan knows). `num_items` as the host counted them.
[[nodiscard]] cudaError_t LaunchAttentionPrefill(const AttentionArgs& args, const AttentionItem* items,
                                                 int32_t num_items, cudaStream_t stream);
// The same where HasWgmma() (matmul.h) says that the card can, with the `num_sms` that the plan knows.
[[nodiscard]] cudaError_t LaunchAttentionPrefillWgmma(const AttentionArgs& args, const AttentionItem* items,
                                                      int32_t num_items, int32_t num_sms,
                                                      cudaStream_t stream);

}  // namespace ridge::kernels::cuda
