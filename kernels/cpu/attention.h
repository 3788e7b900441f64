// Attention of consecutive rows of one sequence over its paged KV, for one KV head and the query heads that
// share it.
//
// Row r stands at position first_position + r and sees keys 0 .. its own. For each query head, with c =
// log2(e) / sqrt(d) and S = q . k (virtual lanes over d, contract):
//   keys are cut into chunks of 256 from position 0; each chunk starts fresh with m = -inf, l = 0, O = 0;
//   per tile of 64 keys: m' = max(m, max S);
//     where m' > m: alpha = 2^fma(m, c, -(m' c)), l *= alpha, O *= alpha; elsewhere neither is touched;
//     P = fp16(2^fma(S, c, -(m' c))); then in ascending key order l += P and O = fma(P, v, O);
//   chunks are folded in ascending order: M' = max(M, m); a = 2^fma(M, c, -(M' c)), b = 2^fma(m, c, -(M' c));
//     L = fma(L, a, l b); A = fma(A, a, O b);
//   out = fp16(A / L).
//
// Bytes read: the K and V of all keys once per call. FLOPs: 4 d a key, row and query head.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/half.h"

namespace ridge::kernels::cpu {

// Tokens of a KV block.
inline constexpr int32_t kKvBlockTokens = 16;
// Rows of one call; more would leave the caches.
inline constexpr int32_t kMaxAttentionRows = 16;

struct AttentionArgs {
  // Row r, query head g of the group at q[r * row_stride + g * head_dim]; values that fp16 holds.
  const float* q;
  float* out;  // the same layout
  int64_t row_stride;
  int32_t num_rows;  // <= kMaxAttentionRows
  int64_t first_position;
  int32_t group_size;  // query heads of this KV head
  int32_t head_dim;    // a multiple of 16
  // Key t of block b at pool[block_table[b] * block_stride + k_offset + t * head_dim], values likewise.
  const Half* pool;
  const int32_t* block_table;
  int64_t block_stride;
  int64_t k_offset;
  int64_t v_offset;
  int64_t* saturations;
};

// `scratch` is grown as needed and may be reused.
void Attention(const AttentionArgs& args, std::vector<float>* scratch);

}  // namespace ridge::kernels::cpu
