// y[m][n] = sum over k of W[n][k] x[m][k], with fp16 weights and fp32 sums.
//
// Order (contract): per output one chain of fused multiply-adds in ascending k within each DotChunk(K),
// starting from zero; chunk sums are added in ascending order. Lanes run along n, so that neither m nor a
// thread's share of n changes a bit.
//
// Weights are packed in panels [ceil(N / 32)][K][32] fp16: a cache line holds one k, and a thread's share is
// one stretch of memory, read once in order with prefetches ahead of the hardware's. With one row the kernel
// runs at the memory's speed. Up to a tile of rows weights are converted in registers; more rows share a
// chunk of a panel converted to fp32 in the cache, and come in blocks that stay in the second-level cache.
// Bytes read from memory: 2 N K for each block of rows. FLOPs: 2 M N K.
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

// Floats of working memory that a call of Matmul with this k needs.
int64_t MatmulScratch(int64_t k);

struct MatmulArgs {
  const float* x;  // [m][k], values that fp16 holds
  const Half* w;   // packed
  float* y;        // [m][y_stride]
  int64_t m, n, k;
  int64_t y_stride;
  const float* bias = nullptr;  // [n], added after the last chunk
  bool accumulate = false;      // y holds the residual, to which the result is added
};

// Computes the outputs of panels [panel_begin, panel_end). Calls for disjoint panels may run at once, each
// with its own `scratch` of MatmulScratch(k) floats.
void Matmul(const MatmulArgs& args, int64_t panel_begin, int64_t panel_end, float* scratch);

// Asks for the first lines of the panels from panel_begin on, which a call of Matmul will read: memory stays at
// work while threads wait for each other.
void PrefetchPanels(const Half* w, int64_t k, int64_t panel_begin);

}  // namespace ridge::kernels::cpu
