// The chunks of keys of rows that have several, folded in ascending order (attention.h) by finishing warps of
// many blocks (decode_layers.cu): a warp 64 columns of a head, a lane two of them.
#pragma once

#include "kernels/cuda/decode_layers_block.cuh"

namespace ridge::kernels::cuda::decode_layers {

#if __CUDA_ARCH__ >= 900

constexpr int kFoldColumns = 2 * kWarpThreads;
constexpr int kFoldChunks = 8;  // that a warp asks for at once

// The item of chunk 0 of a row; negative: the row is padding.
__device__ inline int FirstItemOf(const AttentionWork& work, int row, int lane) {
  const int count = *work.num_items;
  for (int begin = 0; begin < count; begin += kWarpThreads) {
    const int i = begin + lane;
    const bool found = i < count && work.items[i].first_row == row && work.items[i].chunk_begin == 0;
    const uint32_t lanes = __ballot_sync(0xFFFFFFFFu, found);
    if (lanes != 0) return begin + __ffs(static_cast<int>(lanes)) - 1;
  }
  return -1;
}

// What a warp knows of the chunks so far: O of its lane's columns, m and l.
struct Folded {
  float max = -INFINITY;
  float sum = 0.0f;
  float out[2] = {};
};

// Chunks begin .. of `count`, at most kFoldChunks. `columns`: the lane's of chunk 0,
// `statistics`: m and l of chunk 0, `stride`: words from a chunk's to the next one's.
__device__ inline void FoldSome(const uint64_t* columns, const uint64_t* statistics, int64_t stride,
                                int begin, int count, float c, uint32_t tag, int lane, Folded* folded) {
  const int some = min(kFoldChunks, count - begin);
  WordPair pairs[kFoldChunks + 1];  // the last: m and l of chunk `begin` + lane
  PollPairs(
      pairs, tag, kWaitPartials, [&](int i) { return (i < kFoldChunks ? i : lane) < some; },
      [&](int i) {
        return i < kFoldChunks ? columns + (begin + i) * stride : statistics + (begin + lane) * stride;
      });
  // The factors of all chunks at once, one a lane: they depend on maxima alone.
  const float chunk_max = lane < some ? pairs[kFoldChunks].Float(0) : -INFINITY;
  float max = fmaxf(folded->max, chunk_max);  // after the chunk
#pragma unroll
  for (int distance = 1; distance < kFoldChunks; distance *= 2) {
    const float before = __shfl_up_sync(0xFFFFFFFFu, max, distance);
    if (lane >= distance) max = fmaxf(max, before);
  }
  const float before = __shfl_up_sync(0xFFFFFFFFu, max, 1);
  const FoldFactors factors = FoldRow(lane == 0 ? folded->max : before, chunk_max, c);
#pragma unroll
  for (int i = 0; i < kFoldChunks; ++i) {
    const FoldFactors of_chunk = {__shfl_sync(0xFFFFFFFFu, factors.max, i),
                                  __shfl_sync(0xFFFFFFFFu, factors.folded, i),
                                  __shfl_sync(0xFFFFFFFFu, factors.chunk, i)};
    const float its_max = __shfl_sync(0xFFFFFFFFu, chunk_max, i);
    const float its_sum = __uint_as_float(__shfl_sync(0xFFFFFFFFu, pairs[kFoldChunks].Value(1), i));
    if (begin + i == 0) {
      *folded = {its_max, its_sum, {pairs[i].Float(0), pairs[i].Float(1)}};
    } else if (i < some && its_max != -INFINITY) {
      folded->max = of_chunk.max;
      folded->sum = FoldValue(folded->sum, its_sum, of_chunk);
      folded->out[0] = FoldValue(folded->out[0], pairs[i].Float(0), of_chunk);
      folded->out[1] = FoldValue(folded->out[1], pairs[i].Float(1), of_chunk);
    }
  }
}

// All that is this warp's of the step's rows.
template <int kDim>
__device__ __noinline__ void FoldChunks(uint32_t block_address, int layer, int finisher, int lane) {
  const Block& block = BlockAt(block_address);
  const uint32_t tag = block.tags.Of(layer);
  const DecodeLayersArgs& args = block.args;
  const int heads = args.shape.num_heads, kv_heads = args.shape.num_kv_heads, group = heads / kv_heads;
  const int blocks = static_cast<int>(gridDim.x);
  // From the last block on: the first ones have attention's items.
  for (int task = blocks - 1 - static_cast<int>(blockIdx.x) + finisher * blocks;
       task < block.rows * heads * (kDim / kFoldColumns); task += kFinishers * blocks) {
    const int head = task / (kDim / kFoldColumns) % heads, row = task / (kDim / kFoldColumns) / heads;
    const int item = FirstItemOf(args.work, row, lane);
    const int count = item < 0 ? 0 : args.work.items[item].num_partials;
    if (count < 2) continue;  // the block of the only chunk hands over the result
    const uint64_t* const partial =
        block.words.partials + (item * kv_heads + head / group) * kPartialWords<kDim>;
    const int first_column = task % (kDim / kFoldColumns) * kFoldColumns;
    const uint64_t* const columns = partial + head % group * kDim + first_column + lane * 2;
    const uint64_t* const statistics = partial + kMaxAttentionGroup * kDim + head % group * 2;
    Folded folded;
    for (int begin = 0; begin < count; begin += kFoldChunks) {
      FoldSome(columns, statistics, kv_heads * kPartialWords<kDim>, begin, count, ScoreScale(kDim), tag, lane,
               &folded);
    }
    // The lane's columns are g and g + 8 of 16; even lanes hand over the first and its neighbour's, odd ones
    // the second.
    const __half low = SaturateToHalf(__fdiv_rn(folded.out[0], folded.sum), args.saturations);
    const __half high = SaturateToHalf(__fdiv_rn(folded.out[1], folded.sum), args.saturations);
    const bool odd = lane % 2 != 0;
    const __half other_low = FromNeighbour(low), other_high = FromNeighbour(high);
    const int column = first_column + lane / 8 * 16 + lane % 8 + (odd ? 7 : 0);
    PublishArmed(block.Armed(layer, row, kArmedAttention) + (head * kDim + column) / 2,
                 PackWithNeighbour(odd ? high : low, odd ? other_high : other_low, lane));
  }
}

#endif

}  // namespace ridge::kernels::cuda::decode_layers
