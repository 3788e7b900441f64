// A chunk of keys and one KV head against a decode row's queries, by eight of a block's multiplying warps
// (decode_layers.cu). The arithmetic is attention.h's.
//
// Made for the shortest way from the queries to the result. Keys, then values, are the 16-row operand and the
// queries of the KV head, at most 8, the n8 one; warp w computes the scores of keys 32 w .. 32 w + 31, then
// columns 16 w .. 16 w + 15 of O over all keys, in ascending order. Keys go to registers while the queries
// are not there yet, values while the maxima are exchanged.
//
// Fragments, g = lane / 4, t = lane % 4: of scores a lane has keys g and g + 8 of a tile of 16 and queries 2
// t and 2 t + 1, of O columns g and g + 8 and the same queries.
#pragma once

#include "kernels/cuda/decode_layers_block.cuh"

namespace ridge::kernels::cuda::decode_layers {

#if __CUDA_ARCH__ >= 900

constexpr int kChunkThreads = kChunkWarps * kWarpThreads;
constexpr int kTilesOfChunk = kAttentionChunk / kAttentionTile;
constexpr int kStepsOfTile = kAttentionTile / 16;

template <int kSlots, int kDim>
class ChunkAttention {
 public:
  // `keys`: number of the first piece of keys.
  __device__ ChunkAttention(const Block& block, int warp, unsigned lane, int layer, uint32_t keys)
      : block_(block),
        item_(block.item),
        num_tiles_(block.work.num_tiles),
        num_keys_(block.work.num_keys),
        warp_(warp),
        lane_(lane),
        layer_(layer),
        tag_(block.tags.Of(layer)),
        keys_(keys),
        values_(keys + KeyPieces<kDim>(block.work)),
        ring_(block.RingOf<kSlots>()),
        queries_(block.x),
        shared_(reinterpret_cast<ChunkExchange*>(__cvta_shared_to_generic(block.x + kQueryBytes<kDim>))) {}

  // By kChunkWarps warps, when x is free.
  __device__ void Run() const {
    const float c = ScoreScale(kDim);
    const int new_key = NewKey();
    const bool has_keys = warp_ / kChunkWarpsPerTile < num_tiles_;
    const bool has_columns = warp_ * kChunkWarpColumns < kDim;
    AwaitPieces();
    // Whose keys the new one is among loads them again: the row was being written.
    FragmentA k[kKeyTiles][kDim / 16];
#pragma unroll 1
    for (bool again = false;; again = true) {
      if (has_keys) LoadKeys(&k);
      if (again) break;
      TakeNewRows();
      SyncWarps<kChunkThreads>(kAttentionBarrier);
      if (new_key / kChunkWarpKeys != warp_) break;
    }
    FragmentC scores[kKeyTiles] = {};
    if (has_keys) {
      ComputeScores(k, &scores);
      StoreMaxima(scores);
    }
    FragmentA v[kStepsOfTile];
    if (has_columns) LoadValues(0, &v);
    FenceForBulkCopies();
    SyncWarps<kChunkThreads>(kAttentionBarrier);
    Release(keys_);
    const float max = TileMaximum(), factor = RescaleOf(max, c);
    if (has_keys) StoreProbabilities(scores, max, c);
    SyncWarps<kChunkThreads>(kAttentionBarrier);
    if (has_columns) MultiplyValues(max, factor, &v);
    FenceForBulkCopies();
    SyncWarps<kChunkThreads>(kAttentionBarrier);
    Release(values_);
  }

 private:
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kKeyTiles = kChunkWarpKeys / 16;  // of a warp

  // Where the step's own key stands in the chunk; kAttentionChunk or more: in a later one.
  __device__ int NewKey() const {
    return item_.first_position - item_.chunk_begin * kAttentionChunk;
  }

  __device__ uint32_t Place(uint32_t first, int key) const {
    return ring_.Piece(first + key / kPieceKeys<kDim>) + key % kPieceKeys<kDim> * kRowBytes;
  }

  __device__ void Release(uint32_t first) const {
    if (static_cast<int>(threadIdx.x) < KeyPieces<kDim>(block_.work)) ring_.Release(first + threadIdx.x);
  }

  // Until the warp's keys have landed, a piece of values, and those among which it may put the new rows: what
  // other warps waited for is known behind a barrier.
  __device__ void AwaitPieces() const {
    const int pieces = KeyPieces<kDim>(block_.work), own = warp_ * kChunkWarpKeys / kPieceKeys<kDim>;
    if (own < pieces) ring_.AwaitFull(keys_ + own);
    if (warp_ < pieces) ring_.AwaitFull(values_ + warp_);
    const int new_piece = NewKey() / kPieceKeys<kDim>;
    if (new_piece >= pieces) return;
    ring_.AwaitFull(keys_ + new_piece);
    ring_.AwaitFull(values_ + new_piece);
  }

  // Queries to their place; this step's key and value, where they are of the chunk, among the old ones.
  // Behind the last query stands what stood there: it goes into columns that nobody reads.
  __device__ void TakeNewRows() const {
    constexpr int kRowPairs = kDim / 4;  // of words
    constexpr int kTurns = ((kMaxAttentionGroup + 2) * kRowPairs + kChunkThreads - 1) / kChunkThreads;
    const int queries = item_.num_virtual, new_key = NewKey();
    const int rows = queries + (new_key < kAttentionChunk ? 2 : 0);
    // Row r of queries, then key, then value; a thread always has the same columns.
    constexpr int kRowsAtOnce = kChunkThreads / kRowPairs;
    const int first_row = static_cast<int>(threadIdx.x) / kRowPairs;
    const unsigned pair = threadIdx.x % kRowPairs;
    const uint64_t* const words =
        block_.words.qkv + static_cast<int64_t>(item_.first_row) * (block_.qkv_size / 2) + pair * 2;
    const int kv_head = block_.work.kv_head, heads = block_.args.shape.num_heads,
              kv_heads = block_.args.shape.num_kv_heads;
    WordPair pairs[kTurns];
    PollPairs(
        pairs, tag_, kWaitQueries, [&](int i) { return first_row + i * kRowsAtOnce < rows; },
        [&](int i) {
          const int row = first_row + i * kRowsAtOnce;
          const int head = row < queries    ? kv_head * queries + row
                           : row == queries ? heads + kv_head
                                            : heads + kv_heads + kv_head;
          return words + head * (kDim / 2);
        });
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = first_row + i * kRowsAtOnce;
      if (row >= rows) break;
      const uint32_t base = row < queries    ? queries_ + row * kRowBytes
                            : row == queries ? Place(keys_, new_key)
                                             : Place(values_, new_key);
      const unsigned swizzle = (row < queries ? row : new_key) % 8;
      StoreShared64(base + (pair / 2 ^ swizzle) * kPieceBytes + pair % 2 * 8, pairs[i].Value(0),
                    pairs[i].Value(1));
    }
  }

  // The warp's keys. Rows are swizzled as SwizzledOffset says; pieces begin at multiples of a row.
  __device__ void LoadKeys(FragmentA (*k)[kKeyTiles][kDim / 16]) const {
    const uint32_t from = Place(keys_, warp_ * kChunkWarpKeys) + lane_ % 16 * kRowBytes +
                          (lane_ / 16 ^ lane_ % 8) * kPieceBytes;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile)
        LoadMatrices((*k)[tile][step].x, (from ^ step * 2 * kPieceBytes) + tile * 16 * kRowBytes);
    }
  }

  __device__ void ComputeScores(const FragmentA (&k)[kKeyTiles][kDim / 16],
                                FragmentC (*scores)[kKeyTiles]) const {
    const uint32_t queries = queries_ + lane_ % 8 * kRowBytes + (lane_ / 8 ^ lane_ % 8) * kPieceBytes;
#pragma unroll
    for (int steps = 0; steps < kDim / 32; ++steps) {
      uint32_t q[4];
      LoadMatrices(q, queries ^ steps * 4 * kPieceBytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile)
          Mma((*scores)[tile], k[tile][2 * steps + i], {{q[2 * i], q[2 * i + 1]}});
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kKeyTiles; ++i) {
      const int key = warp_ * kChunkWarpKeys + i * 8 + static_cast<int>(lane_ / 4);
      if (key < num_keys_) continue;
      (*scores)[i / 2].x[i % 2 * 2] = (*scores)[i / 2].x[i % 2 * 2 + 1] = -INFINITY;
    }
  }

  // Of the warp's keys.
  __device__ void StoreMaxima(const FragmentC (&scores)[kKeyTiles]) const {
    float max[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max[i] = fmaxf(scores[0].x[i], scores[0].x[i + 2]);
#pragma unroll
      for (int tile = 1; tile < kKeyTiles; ++tile)
        max[i] = fmaxf(max[i], fmaxf(scores[tile].x[i], scores[tile].x[i + 2]));
    }
#pragma unroll
    for (int distance = 4; distance < kWarpThreads; distance *= 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) max[i] = fmaxf(max[i], __shfl_xor_sync(0xFFFFFFFFu, max[i], distance));
    }
    if (lane_ < 4) shared_->maxima[warp_][2 * lane_] = max[0];
    if (lane_ < 4) shared_->maxima[warp_][2 * lane_ + 1] = max[1];
  }

  // After tile lane / 8, of query lane % 8.
  __device__ float TileMaximum() const {
    const int query = lane_ % 8,
              warps = min(static_cast<int>(lane_ / 8) + 1, num_tiles_) * kChunkWarpsPerTile;
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kChunkWarps; ++i) {
      const float other = shared_->maxima[i][query];
      if (i < warps) max = fmaxf(max, other);
    }
    return max;
  }

  // What the sums before tile lane / 8 are multiplied by.
  __device__ float RescaleOf(float max, float c) const {
    const float before = __shfl_up_sync(0xFFFFFFFFu, max, kMaxAttentionGroup);
    return lane_ >= kMaxAttentionGroup && before != max ? RescaleFactor(before, max, c) : 1.0f;
  }

  // What the lane of a tile and one of this lane's queries, 2 t + i, has.
  __device__ float OfTile(float value, int tile, int i) const {
    return __shfl_sync(0xFFFFFFFFu, value, tile * kMaxAttentionGroup + static_cast<int>(lane_ % 4) * 2 + i);
  }

  // P of the warp's keys, as the n8 operand.
  __device__ void StoreProbabilities(const FragmentC (&scores)[kKeyTiles], float max, float c) const {
    static_assert(kKeyTiles == 2);
    const float offset = max == -INFINITY ? 0.0f : -__fmul_rn(max, c);
    const float offset0 = OfTile(offset, warp_ / kChunkWarpsPerTile, 0);
    const float offset1 = OfTile(offset, warp_ / kChunkWarpsPerTile, 1);
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&s)[4] = scores[i / 2].x;
      p[i] = Transpose8x8(WordOf(__floats2half2_rn(Exp2ForHalf(__fmaf_rn(s[i % 2 * 2], c, offset0)),
                                                   Exp2ForHalf(__fmaf_rn(s[i % 2 * 2 + 1], c, offset1)))));
    }
    shared_->probabilities[warp_][lane_] = make_uint4(p[0], p[1], p[2], p[3]);
  }

  // The warp's columns of a tile's keys.
  __device__ void LoadValues(int tile, FragmentA (*v)[kStepsOfTile]) const {
    const uint32_t lane_offset =
        (lane_ % 8 + lane_ / 16 * 8) * kRowBytes + ((2 * warp_ + lane_ / 8 % 2) ^ lane_ % 8) * kPieceBytes;
#pragma unroll
    for (int step = 0; step < kStepsOfTile; ++step)
      LoadMatricesTransposed((*v)[step].x, Place(values_, tile * kAttentionTile + step * 16) + lane_offset);
  }

  // `v`: of the first tile; `max` and `factor`: of tile lane / 8 and query lane % 8.
  __device__ void MultiplyValues(float max, float factor, FragmentA (*v)[kStepsOfTile]) const {
    constexpr FragmentA kOnes = {{0x3C003C00u, 0x3C003C00u, 0x3C003C00u, 0x3C003C00u}};
    FragmentC out = {}, sum = {};
#pragma unroll 1
    for (int tile = 0; tile < num_tiles_; ++tile) {
      FragmentA next[kStepsOfTile];
      LoadValues(min(tile + 1, num_tiles_ - 1), &next);
      const float factors[2] = {OfTile(factor, tile, 0), OfTile(factor, tile, 1)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out.x[i] = __fmul_rn(out.x[i], factors[i % 2]);
        sum.x[i] = __fmul_rn(sum.x[i], factors[i % 2]);
      }
#pragma unroll
      for (int step = 0; step < kStepsOfTile; step += 2) {
        const uint4 p = shared_->probabilities[(tile * kStepsOfTile + step) / 2][lane_];
        Mma(out, (*v)[step], {{p.x, p.y}});
        Mma(sum, kOnes, {{p.x, p.y}});
        Mma(out, (*v)[step + 1], {{p.z, p.w}});
        Mma(sum, kOnes, {{p.z, p.w}});
      }
#pragma unroll
      for (int step = 0; step < kStepsOfTile; ++step) (*v)[step] = next[step];
    }
    const int query = static_cast<int>(lane_ % 4) * 2;
    if (item_.num_partials > 1) {
      const float last[2] = {OfTile(max, kTilesOfChunk - 1, 0), OfTile(max, kTilesOfChunk - 1, 1)};
      HandOverPartial(query, last, sum, out);
    } else {
      HandOver(query, sum, out);
    }
  }

  // To the warps that fold (decode_layers_fold.cuh).
  __device__ void HandOverPartial(int query, const float (&max)[2], const FragmentC& sum,
                                  const FragmentC& out) const {
    uint64_t* const partial = block_.words.partials + blockIdx.x * kPartialWords<kDim>;
    uint64_t* const columns = partial + warp_ * kChunkWarpColumns + lane_ / 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (query + i >= item_.num_virtual) break;
      PublishFloats(columns + (query + i) * kDim, out.x[i], out.x[i + 2], tag_);
      if (warp_ == 0 && lane_ < 4) {
        PublishFloats(partial + kMaxAttentionGroup * kDim + (query + i) * 2, max[i], sum.x[i], tag_);
      }
    }
  }

  // The result: a lane with an even g hands over its column g and the next, one with an odd g its column g +
  // 8 and the one before.
  __device__ void HandOver(int query, const FragmentC& sum, const FragmentC& out) const {
    const bool odd = lane_ / 4 % 2 != 0;
    __half2 low{}, high{};  // columns g and g + 8 of two queries
    if (query < item_.num_virtual) {
      const bool both = query + 1 < item_.num_virtual;
      low = SaturateToHalf2(__fdiv_rn(out.x[0], sum.x[0]), both ? __fdiv_rn(out.x[1], sum.x[1]) : 0.0f,
                            block_.args.saturations);
      high = SaturateToHalf2(__fdiv_rn(out.x[2], sum.x[2]), both ? __fdiv_rn(out.x[3], sum.x[3]) : 0.0f,
                             block_.args.saturations);
    }
    const uint32_t other_word = __shfl_xor_sync(0xFFFFFFFFu, WordOf(odd ? low : high), 4);
    const __half2 other = *reinterpret_cast<const __half2*>(&other_word);
    const __half2 first = odd ? other : low, second = odd ? high : other;
    const int column = warp_ * kChunkWarpColumns + static_cast<int>(lane_ / 4) + (odd ? 7 : 0);
    uint32_t* const to = block_.Armed(layer_, item_.first_row, kArmedAttention) +
                         ((block_.work.kv_head * item_.num_virtual + query) * kDim + column) / 2;
    if (query < item_.num_virtual) PublishArmed(to, WordOf(__lows2half2(first, second)));
    if (query + 1 < item_.num_virtual) PublishArmed(to + kDim / 2, WordOf(__highs2half2(first, second)));
  }

  const Block& block_;
  const AttentionItem& item_;
  const int num_tiles_, num_keys_;
  const int warp_;
  const unsigned lane_;
  const int layer_;
  const uint32_t tag_;
  const uint32_t keys_, values_;
  const Ring<kSlots> ring_;
  const uint32_t queries_;
  ChunkExchange* const shared_;
};

template <int kSlots, int kDim>
__device__ __noinline__ void RunAttention(uint32_t block_address, int warp, int lane, int layer,
                                          uint32_t keys) {
  ChunkAttention<kSlots, kDim>(BlockAt(block_address), warp, static_cast<unsigned>(lane), layer, keys).Run();
}

#endif

}  // namespace ridge::kernels::cuda::decode_layers
