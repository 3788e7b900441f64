// What happens to a finished sum: shared by the matmul kernels, and with it the bits.
#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rounding.cuh"
#include "kernels/cuda/silu_mul.cuh"

namespace ridge::kernels::cuda {

// The rotated pair (i, i + d / 2) of one head of q or k, or the same two of v, before any rounding.
__device__ inline void WriteRopeKv(const RopeKvArgs& args, int token, int row, float low, float high) {
  const int d = args.head_dim, half = d / 2, head = row / d, i = row % d / 16 * 8 + row % 8;
  const int position = args.positions[token];
  if (head < args.num_heads + args.num_kv_heads) {
    const float c = args.cosines[static_cast<int64_t>(position) * half + i];
    const float s = args.sines[static_cast<int64_t>(position) * half + i];
    const float x = low;
    low = __fmaf_rn(x, c, -__fmul_rn(high, s));
    high = __fmaf_rn(high, c, __fmul_rn(x, s));
  }
  Half* out;
  if (head < args.num_heads) {
    out = args.q + (static_cast<int64_t>(token) * args.num_heads + head) * d;
  } else {
    const int slot = args.slots[token];
    if (slot < 0) return;
    const int block =
        args.block_tables[static_cast<int64_t>(slot) * args.table_stride + position / kKvBlockTokens];
    const bool is_key = head < args.num_heads + args.num_kv_heads;
    const int kv_head = (head - args.num_heads) % args.num_kv_heads;
    out = args.kv.pool + block * args.kv.block_stride + (is_key ? args.kv.key_offset : args.kv.value_offset) +
          (static_cast<int64_t>(kv_head) * kKvBlockTokens + position % kKvBlockTokens) * d;
  }
  out[i] = __half_as_ushort(SaturateToHalf(low, args.saturations));
  out[i + half] = __half_as_ushort(SaturateToHalf(high, args.saturations));
}

// Loads that WriteSums will do, sent ahead so that it finds them in L1: before the prior kernel is waited for
// what no kernel of the step writes, after it the residual.
__device__ inline void Touch(const void* pointer) {
  asm volatile("{ .reg .u32 unused; ld.global.u32 unused, [%0]; }" ::"l"(pointer));
}

__device__ inline void TouchConstants(const MatmulArgs& args, int token, int row) {
  if (token >= args.m || row >= args.n) return;
  if (args.bias != nullptr) {
    Touch(args.bias + row);
    Touch(args.bias + row + 8 * (row + 8 < args.n));
  }
  if (args.output != MatmulOutput::kRopeKv) return;
  const RopeKvArgs& rope = args.rope;
  const int half = rope.head_dim / 2, i = row % rope.head_dim / 16 * 8 + row % 8;
  const int position = rope.positions[token], slot = rope.slots[token];
  Touch(rope.cosines + static_cast<int64_t>(position) * half + i);
  Touch(rope.sines + static_cast<int64_t>(position) * half + i);
  if (slot >= 0)
    Touch(rope.block_tables + static_cast<int64_t>(slot) * rope.table_stride + position / kKvBlockTokens);
}

__device__ inline void TouchResidual(const MatmulArgs& args, int token, int row) {
  if (args.output != MatmulOutput::kResidual || token >= args.m || row >= args.n) return;
  const float* y = args.y + token * args.y_stride + row;
  Touch(y);
  Touch(y + 8 * (row + 8 < args.n));
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
  if (args.output == MatmulOutput::kRopeKv) return WriteRopeKv(args.rope, token, row, low, high);
  float* y = args.y + token * args.y_stride + row;
  if (args.output == MatmulOutput::kResidual) {
    low = __fadd_rn(y[0], low);
    if (has_high) high = __fadd_rn(y[8], high);
  }
  y[0] = low;
  if (has_high) y[8] = high;
}

}  // namespace ridge::kernels::cuda
