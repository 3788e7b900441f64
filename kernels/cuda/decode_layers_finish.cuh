// The warps that finish (decode_layers.cu): they add the chunks' sums, do what follows, and hand the results
// over. Each phase is a function that is called, as in decode_layers_multiply.cuh.
#pragma once

#include "kernels/cuda/decode_layers_block.cuh"
#include "kernels/cuda/decode_layers_fold.cuh"

namespace ridge::kernels::cuda::decode_layers {

#if __CUDA_ARCH__ >= 900

// A lane's pair of rows of a tile, r and r + 8, and token.
struct Pair {
  int row;
  int token;
  bool valid;
};

__device__ inline Pair PairOf(const Block& block, int lane) {
  static_assert(kMaxDecodeLayersRows * 8 <= kWarpThreads);
  return {lane % 8, lane / 8, lane / 8 < block.rows};
}

// Calls visit(unit of the share, pair) for the units that are this warp's.
template <typename Visit>
__device__ inline void VisitUnits(const Block& block, const MatrixShare& share, int finisher, int lane,
                                  const Visit& visit) {
  const Pair pair = PairOf(block, lane);
#pragma unroll 1
  for (int i = finisher; i < share.units; i += kFinishers) visit(i, pair);
}

// The chunks' sums of a pair, in ascending order; `from`: the first chunk's of row r.
__device__ inline void AddChains(uint32_t from, int chunks, int chunk_bytes, float* low, float* high) {
  *low = LoadSharedFloat(from);
  *high = LoadSharedFloat(from + 8 * 4);
#pragma unroll
  for (int chunk = 1; chunk < kMaxDotChunks; ++chunk) {
    if (chunk >= chunks) break;
    *low = __fadd_rn(*low, LoadSharedFloat(from + chunk * chunk_bytes));
    *high = __fadd_rn(*high, LoadSharedFloat(from + chunk * chunk_bytes + 8 * 4));
  }
}

// Calls finish(unit of the share, pair, low, high) for what is this warp's, when its sums are there; before
// that prepare(unit, pair).
template <typename Prepare, typename Finish>
__device__ inline void FinishUnits(const Block& block, const MatrixShare share, int finisher, int lane,
                                   uint32_t first_unit, const Prepare& prepare, const Finish& finish) {
  const int chunks = share.IsSplit() ? 1 : share.chunks, chunk_bytes = block.sum_tokens * kSumStride * 4;
  VisitUnits(block, share, finisher, lane, [&](int i, const Pair& pair) {
    const uint32_t unit = first_unit + i;
    prepare(i, pair);
    AwaitCount(block.sums_stored, unit, (unit / kSumSlots + 1) * kMaxDotChunks, kWaitSums);
    float low = 0.0f, high = 0.0f;
    if (pair.valid)
      AddChains(block.Sums(unit) + (pair.token * kSumStride + pair.row) * 4, chunks, chunk_bytes, &low,
                &high);
    __syncwarp();
    finish(i, pair, low, high);
    if (lane == 0) AddSharedRelease(block.sums_taken + unit % kSumSlots * 4, 1);
  });
}

// What the block's outputs of q, k and v need in every layer: computed once, with layer 0's KV memory and no
// bias.
__device__ inline void FindPlaces(const Block& block, int finisher, int lane) {
  const MatrixShare share = block.shares[kQkv];
  const RopeKvArgs& rope = block.args.rope;
  VisitUnits(block, share, finisher, lane, [&](int i, const Pair& pair) {
    if (!pair.valid) return;
    block.places[(i * block.rows + pair.token) * 8 + pair.row] =
        FindRopePlace(nullptr, rope, rope.kv, pair.token, share.Tile(i) * kTileRows + pair.row);
  });
}

template <int kDim>
__device__ __noinline__ void FinishQkv(uint32_t block_address, int layer, int finisher, int lane,
                                       uint32_t first_unit) {
  const Block& block = BlockAt(block_address);
  const DecodeLayersArgs& args = block.args;
  const MatrixShare share = block.shares[kQkv];
  const float* const bias = block.layers[layer].qkv_bias;
  RopePlace place{};
  const auto prepare = [&](int unit, const Pair& pair) {
    place = pair.valid ? block.places[(unit * block.rows + pair.token) * 8 + pair.row] : RopePlace{};
    if (bias == nullptr) return;
    place.bias[0] = bias[share.Tile(unit) * kTileRows + pair.row];
    place.bias[1] = bias[share.Tile(unit) * kTileRows + pair.row + 8];
  };
  FinishUnits(
      block, share, finisher, lane, first_unit, prepare,
      [&](int unit, const Pair& pair, float low, float high) {
        const int row = share.Tile(unit) * kTileRows + pair.row, head = row / kDim,
                  index = row % kDim / 16 * 8 + row % 8;
        const bool valid = place.out != nullptr;
        RotatePair(place, bias != nullptr, &low, &high);
        const __half first = SaturateToHalf(valid ? low : 0.0f, args.saturations);
        const __half second = SaturateToHalf(valid ? high : 0.0f, args.saturations);
        const __half other_first = FromNeighbour(first), other_second = FromNeighbour(second);
        if (!valid) return;
        // Even lanes hand over the lower half of the head, odd ones the upper.
        const bool odd = lane % 2 != 0;
        const uint32_t word = PackWithNeighbour(odd ? second : first, odd ? other_second : other_first, lane);
        const int offset = odd ? kDim / 2 - 1 : 0;  // of the word's first half from the lane's own
        PublishWord(
            block.words.qkv +
                (static_cast<int64_t>(pair.token) * block.qkv_size + head * kDim + index + offset) / 2,
            word, block.tags.Of(layer));
        if (head >= args.shape.num_heads)
          *reinterpret_cast<uint32_t*>(place.out + layer * args.kv_layer_stride + offset) = word;
      });
}

// Of a row of the residual stream.
__device__ inline void PublishPair(uint32_t* row, int column, float low, float high) {
  PublishArmed(row + column, __float_as_uint(low));
  PublishArmed(row + column + 8, __float_as_uint(high));
}

// Of a tile of the residual stream that is the block's own.
__device__ inline float* ResidualOf(const Block& block, int unit, const Pair& pair) {
  return block.residual + (unit * block.rows + pair.token) * kTileRows + pair.row;
}

__device__ __noinline__ void FinishAttentionOutput(uint32_t block_address, int layer, int finisher, int lane,
                                                   uint32_t first_unit) {
  const Block& block = BlockAt(block_address);
  const MatrixShare share = block.shares[kAttentionOutput];
  FinishUnits(
      block, share, finisher, lane, first_unit, [](int, const Pair&) {},
      [&](int unit, const Pair& pair, float low, float high) {
        if (!pair.valid) return;
        float* residual = ResidualOf(block, unit, pair);
        low = __fadd_rn(residual[0], low);
        high = __fadd_rn(residual[8], high);
        PublishPair(block.Armed(layer, pair.token, kArmedMiddle), share.Tile(unit) * kTileRows + pair.row,
                    low, high);
        residual[0] = low;
        residual[8] = high;
      });
}

__device__ __noinline__ void FinishGateUp(uint32_t block_address, int layer, int finisher, int lane,
                                          uint32_t first_unit) {
  const Block& block = BlockAt(block_address);
  const MatrixShare share = block.shares[kGateUp];
  const int chunk_tiles = block.shares[kDown].chunk_steps * kTileDepth / (kTileRows / 2);
  const int tiles_reciprocal = block.chunk_tiles_reciprocal;
  FinishUnits(
      block, share, finisher, lane, first_unit, [](int, const Pair&) {},
      [&](int unit, const Pair& pair, float low, float high) {
        const __half value = SaturateToHalf(SiluMul(low, high), block.args.saturations);
        const __half other = FromNeighbour(value);
        if (!pair.valid || lane % 2 != 0) return;
        // Chunks of the down projection are whole tiles.
        const int tile = share.Tile(unit), chunk = tile * tiles_reciprocal >> 20,
                  column = (tile - chunk * chunk_tiles) * (kTileRows / 2) + pair.row;
        PublishArmed(block.Armed(layer, pair.token, kArmedGated) + (chunk * kMaxColumns + column) / 2,
                     PackWithNeighbour(value, other, lane));
      });
}

__device__ __noinline__ void FinishDown(uint32_t block_address, int layer, int finisher, int lane,
                                        uint32_t first_unit) {
  const Block& block = BlockAt(block_address);
  const MatrixShare share = block.shares[kDown];
  FinishUnits(
      block, share, finisher, lane, first_unit, [](int, const Pair&) {},
      [&](int unit, const Pair& pair, float low, float high) {
        if (!pair.valid) return;
        const int64_t row = int64_t{share.split_chunk} * kMaxDecodeLayersRows + pair.token;
        uint64_t* const to =
            block.words.down + row * block.args.shape.hidden + share.Tile(unit) * kTileRows + pair.row;
        PublishFloat(to, low, block.tags.Of(layer));
        PublishFloat(to + 8, high, block.tags.Of(layer));
      });
}

// The residual stream's tiles that are the block's own: the first value, from the embedding.
__device__ inline void StartResidual(const Block& block, int finisher, int lane) {
  const DecodeLayersArgs& args = block.args;
  const MatrixShare share = block.shares[kAttentionOutput];
  const int hidden = args.shape.hidden;
  VisitUnits(block, share, finisher, lane, [&](int i, const Pair& pair) {
    if (!pair.valid) return;
    int32_t token = args.tokens[pair.token];
    if (token < 0) token = args.last_tokens[-1 - token];
    const int column = share.Tile(i) * kTileRows + pair.row;
    float* residual = ResidualOf(block, i, pair);
    residual[0] = __half2float(__ushort_as_half(args.embedding[PackedIndex(token, column, hidden)]));
    residual[8] = __half2float(__ushort_as_half(args.embedding[PackedIndex(token, column + 8, hidden)]));
    PublishPair(block.Armed(0, pair.token, kArmedInput), column, residual[0], residual[8]);
  });
}

// Adds the down projection's chunks, handed over in layer `layer`.
__device__ __noinline__ void AddDown(uint32_t block_address, int layer, int finisher, int lane) {
  const Block& block = BlockAt(block_address);
  const DecodeLayersArgs& args = block.args;
  const MatrixShare share = block.shares[kAttentionOutput];
  const int hidden = args.shape.hidden, chunks = block.shares[kDown].chunks;
  const bool last = layer == args.shape.num_layers - 1;
  VisitUnits(block, share, finisher, lane, [&](int i, const Pair& pair) {
    if (!pair.valid) return;
    const int column = share.Tile(i) * kTileRows + pair.row;
    const uint64_t* from = block.words.down + static_cast<int64_t>(pair.token) * hidden + column;
    float* residual = ResidualOf(block, i, pair);
    const float old_low = residual[0], old_high = residual[8];
    uint32_t words[2 * kMaxDotChunks];
    PollWords(
        words, block.tags.Of(layer), kWaitDown, [&](int j) { return j / 2 < chunks; },
        [&](int j) { return from + int64_t{j / 2} * kMaxDecodeLayersRows * hidden + j % 2 * 8; });
    float low = __uint_as_float(words[0]), high = __uint_as_float(words[1]);
#pragma unroll
    for (int chunk = 1; chunk < kMaxDotChunks; ++chunk) {
      if (chunk >= chunks) break;
      low = __fadd_rn(low, __uint_as_float(words[2 * chunk]));
      high = __fadd_rn(high, __uint_as_float(words[2 * chunk + 1]));
    }
    low = __fadd_rn(old_low, low);
    high = __fadd_rn(old_high, high);
    if (last) {
      float* const row = args.residual + static_cast<int64_t>(pair.token) * hidden;
      row[column] = low;
      row[column + 8] = high;
    } else {
      PublishPair(block.Armed(layer + 1, pair.token, kArmedInput), column, low, high);
    }
    residual[0] = low;
    residual[8] = high;
  });
}

// Each of the warps takes every kFinishers'th unit; a tile of the residual stream is always the same warp's.
template <int kDim>
__device__ void FinishLayers(uint32_t block_address, int finisher, int lane) {
  const Block& block = BlockAt(block_address);
  StartResidual(block, finisher, lane);
  FindPlaces(block, finisher, lane);
  __syncwarp();
  uint32_t unit = 0;
#pragma unroll 1
  for (int layer = 0; layer < block.args.shape.num_layers; ++layer) {
    FinishQkv<kDim>(block_address, layer, finisher, lane, unit);
    unit += block.shares[kQkv].units;
    FoldChunks<kDim>(block_address, layer, finisher, lane);
    FinishAttentionOutput(block_address, layer, finisher, lane, unit);
    unit += block.shares[kAttentionOutput].units;
    FinishGateUp(block_address, layer, finisher, lane, unit);
    unit += block.shares[kGateUp].units;
    FinishDown(block_address, layer, finisher, lane, unit);
    unit += block.shares[kDown].units;
    AddDown(block_address, layer, finisher, lane);
  }
}

#endif

}  // namespace ridge::kernels::cuda::decode_layers
