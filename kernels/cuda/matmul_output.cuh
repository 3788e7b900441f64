// What happens to a finished sum: shared by the matmul kernels, and with it the bits.
#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rotate.cuh"
#include "kernels/cuda/rounding.cuh"
#include "kernels/cuda/silu_mul.cuh"

namespace ridge::kernels::cuda {

// The rotated pairs (i, i + d / 2) of one head of q or k, or the same of v, of some tokens and of one row of
// W, before any rounding. Tokens beyond `num_tokens` are left out. Loads of a kind go out together.
template <int kCount>
__device__ inline void WriteRopeKv(const RopeKvArgs& args, int num_tokens, int row,
                                   const int (&tokens)[kCount], float (&low)[kCount], float (&high)[kCount]) {
  const int d = args.head_dim, half = d / 2, head = row / d, i = row % d / 16 * 8 + row % 8;
  int positions[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) positions[j] = tokens[j] < num_tokens ? args.positions[tokens[j]] : 0;
  if (head < args.num_heads + args.num_kv_heads) {
    float cosines[kCount], sines[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      cosines[j] = args.cosines[static_cast<int64_t>(positions[j]) * half + i];
      sines[j] = args.sines[static_cast<int64_t>(positions[j]) * half + i];
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) Rotate(cosines[j], sines[j], &low[j], &high[j]);
  }
  Half* out[kCount];
  if (head < args.num_heads) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      out[j] = tokens[j] < num_tokens ? args.q + (static_cast<int64_t>(tokens[j]) * args.num_heads + head) * d
                                      : nullptr;
    }
  } else {
    int slots[kCount], blocks[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) slots[j] = tokens[j] < num_tokens ? args.slots[tokens[j]] : -1;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      blocks[j] = slots[j] < 0 ? 0
                               : args.block_tables[static_cast<int64_t>(slots[j]) * args.table_stride +
                                                   positions[j] / kKvBlockTokens];
    }
    const bool is_key = head < args.num_heads + args.num_kv_heads;
    const int kv_head = (head - args.num_heads) % args.num_kv_heads;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      out[j] = slots[j] < 0
                   ? nullptr
                   : args.kv.pool + blocks[j] * args.kv.block_stride +
                         (is_key ? args.kv.key_offset : args.kv.value_offset) +
                         (static_cast<int64_t>(kv_head) * kKvBlockTokens + positions[j] % kKvBlockTokens) * d;
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (out[j] == nullptr) continue;
    out[j][i] = __half_as_ushort(SaturateToHalf(low[j], args.saturations));
    out[j][i + half] = __half_as_ushort(SaturateToHalf(high[j], args.saturations));
  }
}

// What WriteRopeKv reads and where it writes, for one token and pair of rows: constants of the step, looked
// up while the kernel would only wait.
struct RopePlace {
  Half* out;     // null for padding
  bool rotated;  // q or k
  float cosine, sine;
  float bias[2];
};

__device__ inline RopePlace FindRopePlace(const float* bias, const RopeKvArgs& rope, const KvLayer& kv,
                                          int token, int row) {
  const int d = rope.head_dim, half = d / 2, head = row / d, i = row % d / 16 * 8 + row % 8;
  const int position = rope.positions[token];
  RopePlace place{};
  if (bias != nullptr) {
    place.bias[0] = bias[row];
    place.bias[1] = bias[row + 8];
  }
  place.rotated = head < rope.num_heads + rope.num_kv_heads;
  if (place.rotated) {
    place.cosine = rope.cosines[static_cast<int64_t>(position) * half + i];
    place.sine = rope.sines[static_cast<int64_t>(position) * half + i];
  }
  if (head < rope.num_heads) {
    place.out = rope.q + (static_cast<int64_t>(token) * rope.num_heads + head) * d + i;
    return place;
  }
  const int slot = rope.slots[token];
  if (slot < 0) return place;
  const int block =
      rope.block_tables[static_cast<int64_t>(slot) * rope.table_stride + position / kKvBlockTokens];
  const int kv_head = (head - rope.num_heads) % rope.num_kv_heads;
  place.out = kv.pool + block * kv.block_stride + (place.rotated ? kv.key_offset : kv.value_offset) +
              (static_cast<int64_t>(kv_head) * kKvBlockTokens + position % kKvBlockTokens) * d + i;
  return place;
}

// Bias and rotation of a pair whose place is known.
__device__ inline void RotatePair(const RopePlace& place, bool has_bias, float* low, float* high) {
  if (has_bias) {
    *low = __fadd_rn(*low, place.bias[0]);
    *high = __fadd_rn(*high, place.bias[1]);
  }
  if (place.rotated) Rotate(place.cosine, place.sine, low, high);
}

// WriteSums of kRopeKv where the place is known.
__device__ inline void WriteRopeAt(const MatmulArgs& args, const RopePlace& place, float low, float high) {
  if (place.out == nullptr) return;
  RotatePair(place, args.bias != nullptr, &low, &high);
  place.out[0] = __half_as_ushort(SaturateToHalf(low, args.saturations));
  place.out[args.rope.head_dim / 2] = __half_as_ushort(SaturateToHalf(high, args.saturations));
}

// Sums of one token and of rows `row` and `row` + 8 of W, where row % 16 < 8. Rows beyond n and tokens beyond
// m are left out.
__device__ inline void WriteSums(const MatmulArgs& args, int token, int row, float low, float high) {
  if (token >= args.m || row >= args.n) return;
  const bool has_high = row + 8 < args.n;
  if (args.bias != nullptr) {
    low = __fadd_rn(low, args.bias[row]);
    if (has_high) high = __fadd_rn(high, args.bias[row + 8]);
  }
  if (args.output == MatmulOutput::kSwiGlu) {
    Half* gated = args.gated + static_cast<int64_t>(token) * (args.n / 2) + row / 16 * 8 + row % 8;
    *gated = __half_as_ushort(SaturateToHalf(SiluMul(low, high), args.saturations));
    return;
  }
  if (args.output == MatmulOutput::kRopeKv) {
    const int tokens[1] = {token};
    float lows[1] = {low}, highs[1] = {high};
    return WriteRopeKv(args.rope, args.m, row, tokens, lows, highs);
  }
  float* y = args.y + token * args.y_stride + row;
  if (args.output == MatmulOutput::kResidual) {
    low = __fadd_rn(y[0], low);
    if (has_high) high = __fadd_rn(y[8], high);
  }
  y[0] = low;
  if (has_high) y[8] = high;
}

}  // namespace ridge::kernels::cuda
