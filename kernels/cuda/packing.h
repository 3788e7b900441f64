// How the CUDA kernels hold a weight matrix [n][k]: in tiles of 16 x 16, each in the order in which the lanes
// of a warp hold it as the A operand of mma.m16n8k16, so that a lane's part of a tile is one 16-byte load and
// a warp that goes along k reads 512 contiguous bytes a step. The same registers serve as two B operands
// (rows 0..7: words 0 and 2; rows 8..15: words 1 and 3), and as the A operand of wgmma.
//
// Tiles run along k first: tile (n / 16, k / 16) is number n / 16 * (K / 16) + k / 16. Rows beyond n are
// zero.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/half.h"
#include "kernels/math.h"

namespace ridge::kernels::cuda {

inline constexpr int kTileRows = 16;   // along n
inline constexpr int kTileDepth = 16;  // along k
inline constexpr int kTileSize = kTileRows * kTileDepth;

RIDGE_HD constexpr int64_t NumRowTiles(int64_t n) {
  return (n + kTileRows - 1) / kTileRows;
}

// In elements; k is a multiple of 16.
RIDGE_HD constexpr int64_t PackedSize(int64_t n, int64_t k) {
  return NumRowTiles(n) * kTileRows * k;
}

// Where W[row][column] stands in a packed matrix with `k` columns.
RIDGE_HD constexpr int64_t PackedIndex(int64_t row, int64_t column, int64_t k) {
  const int64_t tile = row / kTileRows * (k / kTileDepth) + column / kTileDepth;
  const int64_t lane = row % 8 * 4 + column % 8 / 2;
  const int64_t word = row % kTileRows / 8 + column % kTileDepth / 8 * 2;
  return tile * kTileSize + lane * 8 + word * 2 + column % 2;
}

// Which row of the packed matrix a tensor's row becomes. The last three put rows that are used together 8
// apart in one tile, so that one lane of a matmul holds the sums of both.
enum class RowPlacement {
  kPlain,   // row
  kGate,    // gate and up share a matrix: row / 8 * 16 + row % 8
  kUp,      // that + 8
  kRotary,  // within each head, the rotated pair (i, i + head_dim / 2) becomes (i / 8 * 16 + i % 8, that + 8)
};

RIDGE_HD constexpr int64_t PackedRow(RowPlacement placement, int64_t row, int64_t head_dim = 0) {
  if (placement == RowPlacement::kPlain) return row;
  if (placement == RowPlacement::kRotary) {
    const int64_t i = row % head_dim, half = head_dim / 2, pair = i % half;
    return row - i + pair / 8 * kTileRows + pair % 8 + i / half * 8;
  }
  return row / 8 * kTileRows + row % 8 + (placement == RowPlacement::kUp ? 8 : 0);
}

struct PackTarget {
  Half* packed;
  int64_t k;
  int64_t row_begin;  // added to the row after its placement
  RowPlacement placement;
  int64_t head_dim = 0;  // kRotary's; row_begin is a multiple of it
};

// Puts rows [first_row, first_row + num_rows) of a tensor, given as [num_rows][k] in device memory, into
// their places.
[[nodiscard]] cudaError_t LaunchPackRows(const Half* rows, int64_t first_row, int64_t num_rows,
                                         const PackTarget& target, cudaStream_t stream);

// A tensor of worker/model/synthetic.h: element `index` is fp16(float(offset + (integer >> shift)) * scale).
struct SyntheticTensor {
  uint64_t key;
  float scale;
  int32_t offset;
  int32_t shift;
};

// Generates the whole tensor [num_rows][k] in its places.
[[nodiscard]] cudaError_t LaunchPackSynthetic(const SyntheticTensor& tensor, int64_t num_rows,
                                              const PackTarget& target, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
