// y[m][n] = sum over k of W[n][k] x[m][k], with fp16 weights and fp32 sums.
//
// Order (contract): per output one chain of fused multiply-adds in ascending k within each DotChunk(K),
// starting from zero; chunk sums are added in ascending order. Lanes run along n, so that neither m nor a
// thread's share of n changes a bit.
//
// Weights are packed in panels [ceil(N / 16)][K][16] fp16: one load gives 16 outputs for one k. Bytes read: 2
// N K from memory, once; rows of x are taken 6 at a time, for which a panel comes from the cache again.
// FLOPs: 2 M N K.
#pragma once

#include <cstdint>

#include "kernels/half.h"
#include "kernels/order.h"

namespace ridge::kernels::cpu {

constexpr int64_t NumPanels(int64_t n) {
  return (n + kPanelWidth - 1) / kPanelWidth;
}

// A packed matrix. Its size in elements is PackedSize(n, k); lanes beyond n are zero.
constexpr int64_t PackedSize(int64_t n, int64_t k) {
  return NumPanels(n) * k * kPanelWidth;
}

// Puts rows [row_begin, row_begin + row_count) of W, given as [row_count][k], into their places in `packed`.
// Calls for disjoint rows may run at once.
void PackRows(const Half* rows, int64_t row_begin, int64_t row_count, int64_t k, Half* packed);

struct MatmulArgs {
  const float* x;  // [m][k], values that fp16 holds
  const Half* w;   // packed
  float* y;        // [m][y_stride]
  int64_t m, n, k;
  int64_t y_stride;
  const float* bias = nullptr;  // [n], added after the last chunk
  bool accumulate = false;      // y holds the residual, to which the result is added
};

// Computes the outputs of panels [panel_begin, panel_end). Calls for disjoint panels may run at once.
void Matmul(const MatmulArgs& args, int64_t panel_begin, int64_t panel_end);

}  // namespace ridge::kernels::cpu
