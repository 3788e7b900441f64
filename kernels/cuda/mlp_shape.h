// How the MLP's kernel (mlp.cu) cuts its work: what the plan and the kernel have in common.
#pragma once

#include <cstdint>

namespace ridge::kernels::cuda {

// Columns of K that are copied together, and the bytes of a row tile of W's.
inline constexpr int32_t kMlpSliceColumns = 64;
inline constexpr int32_t kMlpTileBytes = 16 * kMlpSliceColumns * 2;

// Warps that multiply, in warpgroups: a row tile of gate/up each.
inline constexpr int32_t kMlpMostTiles = 12;

// Whether attention's output matmul is part of the kernel for so many tokens. With more of them it takes
// longer here, where its blocks' messages and sums share the way with what is under way already.
constexpr bool MlpProjects(int32_t tokens) {
  return tokens == 8;
}

// Row tiles of attention's output matmul a block, of one chunk of K.
inline constexpr int32_t kMlpProjectTiles = 8;

// Row tiles of down a block, and slices of theirs that are a slot of the ring.
inline constexpr int32_t kMlpUnitTiles = 4, kMlpUnitSlices = 2;

// Slots of the ring of weights at most, and of the tokens'.
inline constexpr int32_t kMlpMostSlots = 12, kMlpTokenSlots = 8;

// What a block has besides: a row to be normed, barriers.
inline constexpr int32_t kMlpStaticBytes = 9216;

}  // namespace ridge::kernels::cuda
