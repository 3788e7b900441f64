// What the matmuls of few rows share: rows of x in shared memory as the n8 operand, and sums of chunks that
// meet there.
#pragma once

#include "kernels/cuda/mma.cuh"

namespace ridge::kernels::cuda {

// Rows of x are 16 bytes apart from a multiple of 128, so that the 8 rows of an ldmatrix meet different
// banks.
inline constexpr int kRowPad = 8;
// Of a token's 16 sums; 20 puts those of a fragment in different banks.
inline constexpr int kSumStride = 20;
// What is read behind the last row of x, into sums that go nowhere.
inline constexpr int kBeyondRows = 128;

// Where a lane's rows of an ldmatrix stand in x, for both halves of 128 bytes.
template <int kTokenTiles>
struct RowPlaces {
  uint32_t half[kTokenTiles][2];

  // Rows beyond m, whose sums go nowhere, are other columns of the last one: the same address eight times
  // would be eight accesses.
  __device__ RowPlaces(int m, int stride, int lane) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const int row = t * 8 + lane % 8, read_row = min(row, m - 1);
      for (int i = 0; i < 2; ++i)
        half[t][i] = read_row * stride + ((i * 4 + lane / 8) ^ (row - read_row) % 8) * 16;
    }
  }

  // The fragments of steps `step` and `step` + 1, an even number, of all token tiles.
  __device__ void Load(uint32_t (&b)[kTokenTiles][4], uint32_t slice, int step) const {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) LoadMatrices(b[t], slice + half[t][step / 2 % 2] + step / 4 * 128);
  }
};

// A chunk's sums of 8 tokens, to [8][kSumStride].
__device__ inline void StoreSums(const FragmentC& c, float* sums, int lane) {
  float* sum = sums + lane % 4 * 2 * kSumStride + lane / 4;
  sum[0] = c.x[0];
  sum[kSumStride] = c.x[1];
  sum[8] = c.x[2];
  sum[kSumStride + 8] = c.x[3];
}

// The chunks' sums of a token's rows r and r + 8 of a tile, in ascending order: `sum` is the first chunk's of
// row r.
__device__ inline void AddSums(const float* sum, int chunks, int chunk_stride, float* low, float* high) {
  *low = sum[0];
  *high = sum[8];
  for (int chunk = 1; chunk < chunks; ++chunk) {
    sum += chunk_stride;
    *low = __fadd_rn(*low, sum[0]);
    *high = __fadd_rn(*high, sum[8]);
  }
}

}  // namespace ridge::kernels::cuda
