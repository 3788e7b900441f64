// The kernels as plain loops: the oracle of tests.
//
// Two modes. kContract follows the order and the roundings of the numerics contract: kernels/cpu gives the
// same bits. kFloat32 rounds nothing to fp16 and sums in float64: what the model's mathematics says, for
// comparison with recorded outputs of other implementations.
#pragma once

#include <cstdint>

namespace ridge::kernels::reference {

enum class Mode { kContract, kFloat32 };

// y[m][n] = sum of w[n][k] x[m][k] (+ bias[n]); row-major; bias may be null.
void Matmul(Mode mode, const float* x, const float* w, const float* bias, int64_t m, int64_t n, int64_t k,
            float* y);

void RmsNorm(Mode mode, const float* x, const float* weight, float eps, int64_t size, float* out);

// In place: the query or key of one head, rounded in neither mode.
void NormHead(Mode mode, const float* weight, float eps, int64_t head_dim, float* x);

// In place: pairs (i, i + head_dim / 2) of one head at one position.
void RotateHead(Mode mode, const float* cosines, const float* sines, int64_t head_dim, float* x);

void SwiGlu(Mode mode, const float* gate, const float* up, int64_t size, float* out);

// Rounds a row to fp16 in kContract; leaves it alone in kFloat32.
void RoundRow(Mode mode, int64_t size, float* x);

// One query head of one row over keys and values [num_keys][head_dim].
void Attention(Mode mode, const float* q, const float* keys, const float* values, int64_t num_keys,
               int64_t head_dim, float* out);

float LogSumExp(Mode mode, const float* logits, int64_t size);

}  // namespace ridge::kernels::reference
