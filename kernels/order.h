// The constants of the numerics contract that fix the order of every sum. They are part of a server's
// numerics id: a change of one changes bits.
#pragma once

#include <cstdint>

namespace ridge::kernels {

// Lanes of the CPU's virtual vector: element i of a reduction (squares of a norm, probabilities of a chunk, a
// slice of the vocabulary) goes to lane i % 16, whatever the machine's width. The lanes are then added by
// halves: (i, i + 8), (i, i + 4), (i, i + 2), (0, 1). Scores have one chain each, in ascending order of d.
inline constexpr int32_t kVirtualLanes = 16;

// Outputs of a packed weight panel: lanes run along N, a cache line of fp16 for each k. Changes no bit.
inline constexpr int32_t kPanelWidth = 32;

// Columns whose squares are summed together in a norm; groups are added in ascending order.
inline constexpr int32_t kNormGroup = 256;

// Keys of an attention chunk, counted from position 0, and (on a CUDA card) of a tile within it.
inline constexpr int32_t kAttentionChunk = 256;
inline constexpr int32_t kAttentionTile = 64;

// Ids of a slice of the vocabulary in log-sum-exp.
inline constexpr int32_t kVocabularySlice = 256;

// Length of the chunks into which a dot product over K is cut. Within a chunk one chain of fused
// multiply-adds in ascending K; chunk sums are added in ascending order.
constexpr int64_t DotChunk(int64_t k) {
  return k <= 2048 ? 256 : (k / 5 + 255) / 256 * 256;
}

}  // namespace ridge::kernels
