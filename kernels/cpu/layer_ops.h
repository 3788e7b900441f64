// The row-wise operations between the matmuls. Rows are independent of each other; callers give each thread
// its rows. `saturations` counts values that fp16 could not hold.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace ridge::kernels::cpu {

// out[i] = fp16(x[i] / sqrt(mean(x^2) + eps) * weight[i]), as floats. Squares are summed in virtual lanes per
// 256 columns; the groups are added in ascending order.
void RmsNorm(const float* x, const float* weight, float eps, int64_t size, float* out, int64_t* saturations);

// x[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i] of one head's query or key, not rounded: RotateHead
// follows. Sums as RmsNorm does.
void NormHead(const float* weight, float eps, int64_t head_dim, float* x);

// Rotates one head's pairs (i, i + head_dim / 2) by the angles of one position and rounds to fp16. `cosines`
// and `sines` hold head_dim / 2 values: out_i = x_i cos - x_j sin, out_j = x_j cos + x_i sin, each one
// product and one fused multiply-add.
void RotateHead(const float* cosines, const float* sines, int64_t head_dim, float* x, int64_t* saturations);

// x[i] = fp16(x[i]).
void RoundRow(int64_t size, float* x, int64_t* saturations);

// out[i] = fp16(g / (1 + e^-g) * up[i]), g = gate[i].
void SwiGlu(const float* gate, const float* up, int64_t size, float* out, int64_t* saturations);

// Values that fp16 holds, as fp16, and back.
void ToHalf(const float* from, int64_t size, Half* to);
// to[i * stride] = from[i].
void ToHalfStrided(const float* from, int64_t size, int64_t stride, Half* to);
void FromHalf(const Half* from, int64_t size, float* to);

// The largest of `size` >= 1 values.
float RowMax(const float* x, int64_t size);

// out[i] = e^(x[i] - offset).
void ExpRow(const float* x, float offset, int64_t size, float* out);

// ln of the sum of e^x over a row of logits: per slice of 256 ids the maximum m and s = sum of e^(x - m) in
// virtual lanes; slices are folded in ascending order.
float LogSumExp(const float* logits, int64_t size);

}  // namespace ridge::kernels::cpu
