// Where one layer's keys and values stand in the KV pool, [block][layer][K|V][kv head][16][head_dim] fp16.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace ridge::kernels::cuda {

// Tokens of a KV block.
inline constexpr int32_t kKvBlockTokens = 16;

// Offsets are in elements. Key t of block b and KV head h stands at
//   pool[b * block_stride + key_offset + h * 16 * head_dim + t * head_dim], its value at value_offset
//   likewise.
// Pool and offsets are multiples of 16 bytes (they are where head_dim is a multiple of 16).
struct KvLayer {
  Half* pool;
  int64_t block_stride;
  int64_t key_offset;    // of KV head 0
  int64_t value_offset;  // of KV head 0
};

// Of layer `layer`, as worker/backend lays blocks out.
inline KvLayer KvLayerOf(Half* pool, int64_t num_layers, int64_t layer, int64_t num_kv_heads,
                         int64_t head_dim) {
  const int64_t heads = num_kv_heads * kKvBlockTokens * head_dim;
  return {pool, 2 * num_layers * heads, 2 * layer * heads, (2 * layer + 1) * heads};
}

}  // namespace ridge::kernels::cuda
