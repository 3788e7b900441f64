// Attention of consecutive rows of one sequence over its paged KV, for one KV head and the query heads that
// share it.
//
// Row r stands at position first_position + r and sees keys 0 .. its own. For each query head, with c =
// log2(e) / sqrt(d) and S = q . k, one chain of fused multiply-adds in ascending order of d from zero:
//   keys are cut into chunks of 256 from position 0; in each, of the keys that the row sees, m = max S;
//     P = fp16(2^fma(S, c, -(m c))); l = sum of P in 16 virtual lanes; O = sum of P v, one chain of fused
//     multiply-adds in ascending key order from zero;
//   chunks are folded in ascending order: M' = max(M, m); a = 2^fma(M, c, -(M' c)), b = 2^fma(m, c, -(M' c));
//     L = fma(L, a, l b); A = fma(A, a, O b);
//   out = fp16(A / L), of which -0 becomes 0.
//
// Lanes run along the keys in S and along d in O, so that no sum runs across a register. That wants the keys
// of a block transposed. Bytes read: the K and V of all keys once per call. FLOPs: 4 d a key, row and query
// head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/half.h"
#include "kernels/order.h"

namespace ridge::kernels::cpu {

// Tokens of a KV block.
inline constexpr int32_t kKvBlockTokens = 16;
// Rows of one call; more would leave the caches.
inline constexpr int32_t kMaxAttentionRows = 16;
inline constexpr int32_t kMaxAttentionHeadDim = 256;

// Blocks of one KV head's keys.
struct KeyBlocks {
  const int32_t* blocks = nullptr;
  int64_t count = 0;
  int64_t k_offset = 0;
};

struct AttentionArgs {
  // Row r, query head g of the group at q[r * q_stride + g * head_dim]; values that fp16 holds.
  const float* q;
  float* out;  // likewise, with out_stride
  int64_t q_stride;
  int64_t out_stride;
  int32_t num_rows;  // <= kMaxAttentionRows
  int64_t first_position;
  int32_t group_size;  // query heads of this KV head
  int32_t head_dim;    // a multiple of 16, at most kMaxAttentionHeadDim
  // Element i of key t of block b at pool[block_table[b] * block_stride + k_offset + i * 16 + t], of a value
  // at pool[block_table[b] * block_stride + v_offset + t * head_dim + i].
  const Half* pool;
  const int32_t* block_table;
  int64_t block_stride;
  int64_t k_offset;
  int64_t v_offset;
  int64_t* saturations;
  // Keys that this thread reads after the call, if any: memory is asked for the first of them meanwhile.
  KeyBlocks next;
  // Where it is more than num_keys(), so many keys are read and computed with. Those that a row does not see
  // have no part in its result.
  int64_t padded_keys = 0;

  int64_t num_states() const { return int64_t{num_rows} * group_size; }
  int64_t num_keys() const { return first_position + num_rows; }
  int64_t keys_read() const { return std::max(num_keys(), padded_keys); }
  int64_t num_chunks() const { return (keys_read() + kAttentionChunk - 1) / kAttentionChunk; }
};

// The result of one chunk, or of several folded: for each row and query head [m, l, 14 unused, O[head_dim]].
constexpr int64_t PartialStride(int32_t head_dim) {
  return kVirtualLanes + head_dim;
}

// Floats of working memory that Attention and AttentionChunk need for as many states (rows times query
// heads).
int64_t AttentionScratch(int64_t num_states, int32_t head_dim);

// All chunks of all rows.
void Attention(const AttentionArgs& args, float* scratch);

// The two steps of it, for chunks that are computed by different threads: one chunk of all rows, into
// num_states partials; and the fold of chunks whose partials stand one after the other.
void AttentionChunk(const AttentionArgs& args, int64_t chunk, float* partials, float* scratch);
void FoldChunks(const AttentionArgs& args, float* partials);

// The keys that AttentionChunk reads first.
KeyBlocks KeysOfChunk(const AttentionArgs& args, int64_t chunk);

// Asks memory for the first of these keys, before a call that has them neither as its own nor as what comes
// next.
void PrefetchKeys(const Half* pool, int64_t block_stride, int32_t head_dim, const KeyBlocks& keys);

}  // namespace ridge::kernels::cpu
