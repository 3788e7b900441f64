// The warp that fills a block's ring (decode_layers.cu): weights, and attention's old keys and values, in the
// order in which they will be used. It waits for free slots alone.
//
// One thread copies the weights, and the card's bandwidth gives it a quarter of a microsecond a piece: where
// the pieces of a layer come from is computed once.
#pragma once

#include "kernels/cuda/decode_layers_block.cuh"

namespace ridge::kernels::cuda::decode_layers {

#if __CUDA_ARCH__ >= 900

// Pieces that are under way at a time: more would stand before the words that hand over results.
constexpr int kInFlight = 8;

// A place in the ring that moves piece by piece: its slot, and the parity of the slot's use.
template <int kSlots>
struct RingCursor {
  uint32_t slot;
  uint32_t parity;

  __device__ void Advance() {
    if (++slot < kSlots) return;
    slot = 0;
    parity ^= 1;
  }
};

// Lists where in its matrix each piece of a phase begins, in bytes, from `to` on; returns how many there are.
__device__ inline int ListPieces(const MatrixShare share, uint32_t to, int lane) {
  const int tasks = share.Tasks(), pieces = share.Pieces();
#pragma unroll 1
  for (int first = 0; first < tasks; first += kConsumerWarps) {
    const int count = min(kConsumerWarps, tasks - first);
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece) {
      if (lane < count) {
        const int task = first + lane;
        const uint32_t step =
            share.Tile(share.TaskUnit(task)) * share.depth + share.TaskChunk(task) * share.chunk_steps;
        StoreShared32(to + (first * pieces + piece * count + lane) * 4,
                      (step + piece * kPieceSteps) * (kTileSize * 2));
      }
    }
  }
  return tasks * pieces;
}

// The pieces of a phase, listed at `places`, by one thread. `landed`: the piece kInFlight before `next`.
template <int kSlots>
__device__ inline void StreamWeights(const Ring<kSlots> ring, const Half* matrix, uint32_t places, int count,
                                     uint64_t policy, RingCursor<kSlots>* next, RingCursor<kSlots>* landed) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const char* const from = reinterpret_cast<const char*>(matrix) + LoadShared32(places + i * 4);
    AwaitBarrier(ring.FullOf(landed->slot), landed->parity, kWaitLanded);
    AwaitBarrier(ring.EmptyOf(next->slot), next->parity ^ 1, kWaitEmpty);
    ArriveExpecting(ring.FullOf(next->slot), kPieceSize);
    CopyBulk(ring.pieces + next->slot * kPieceSize, from, kPieceSize, ring.FullOf(next->slot), policy);
    next->Advance();
    landed->Advance();
  }
}

// Keys, then values, of a chunk: what earlier steps wrote (the new key's row is whatever stands there). By
// the whole warp.
template <int kSlots, int kDim>
__device__ inline void StreamKeys(const Ring<kSlots> ring, const KvLayer& kv, const ChunkWork& work, int lane,
                                  RingCursor<kSlots>* next, RingCursor<kSlots>* landed) {
  constexpr int kPieces = kDim / kPieceHalves, kTurnKeys = kWarpThreads / kPieces;
  const unsigned lane_key = lane / kPieces, lane_piece = lane % kPieces;
#pragma unroll 1
  for (int i = 0; i < 2 * KeyPieces<kDim>(work); ++i) {
    const bool is_value = i >= KeyPieces<kDim>(work);
    const int first_page = (is_value ? i - KeyPieces<kDim>(work) : i) * (kPieceKeys<kDim> / kKvBlockTokens);
    const Half* heads = kv.pool + (is_value ? kv.value_offset : kv.key_offset) +
                        static_cast<int64_t>(work.kv_head) * kKvBlockTokens * kDim + lane * kPieceHalves;
    const uint32_t to = ring.pieces + next->slot * kPieceSize, full = ring.FullOf(next->slot);
    AwaitBarrier(ring.EmptyOf(next->slot), next->parity ^ 1, kWaitEmpty);
#pragma unroll
    for (int page = 0; page < kPieceKeys<kDim> / kKvBlockTokens; ++page) {
      const int64_t block = __shfl_sync(0xFFFFFFFFu, work.block, first_page + page);
      const Half* from = heads + block * kv.block_stride;
#pragma unroll
      for (int key = 0; key < kKvBlockTokens; key += kTurnKeys) {
        CopyAsync16(to + SwizzledOffset<kPieces>(page * kKvBlockTokens + key + lane_key, lane_piece),
                    from + key * kDim, first_page + page < work.num_pages);
      }
    }
    ExpectCopies(full);
    __syncwarp();
    if (lane == 0) Arrive(full);
    next->Advance();
    landed->Advance();
  }
}

// The block's part of the armed words of a layer: of one row.
struct ArmedPart {
  int row;
  int begin, bytes;

  __device__ explicit ArmedPart(const Block& block) {
    constexpr int kLine = 128;
    const int index = static_cast<int>(blockIdx.x), all = block.armed_words * 4,
              parts = static_cast<int>(gridDim.x) / kMaxDecodeLayersRows;
    const int part = CeilDivide(all / kLine, parts) * kLine;
    row = index % kMaxDecodeLayersRows;
    begin = min(index / kMaxDecodeLayersRows * part, all);
    bytes = min(part, all - begin);
  }
  __device__ char* At(uint32_t* armed, int layer) const {
    const int64_t words = (static_cast<int64_t>(layer) * kMaxDecodeLayersRows + row) * kArmedRow;
    return reinterpret_cast<char*>(armed + words) + begin;
  }
};

// Arms what the launch before this one wrote in a layer.
__device__ inline void ArmLayer(const Block& block, const ArmedPart& part, int layer) {
  if (part.row >= block.arming_rows) return;
  char* const to = part.At(block.arming, layer);
  for (int i = 0; i < part.bytes; i += kArmedBytes)
    StoreBulk(to + i, block.all_armed, min(kArmedBytes, part.bytes - i));
}

// Brings to L2 what the other warps will read of a layer besides: it was written a step ago, and lm_head's
// weights have passed since.
__device__ inline void PrefetchLayer(const Block& block, const ArmedPart& part, int layer) {
  const DecodeLayersShape& shape = block.args.shape;
  if (layer >= shape.num_layers) return;
  if (part.row < block.rows && part.bytes > 0) PrefetchBulk(part.At(block.armed, layer), part.bytes);
  const DecodeLayerWeights& weights = block.layers[layer];
  if (blockIdx.x == gridDim.x - 1) {
    PrefetchBulk(weights.attention_norm, shape.hidden * 4);
    PrefetchBulk(weights.mlp_norm, shape.hidden * 4);
    if (weights.qkv_bias != nullptr) PrefetchBulk(weights.qkv_bias, block.qkv_size * 4);
  }
}

template <int kSlots, int kDim>
__device__ void FillRing(const Block& block, int lane) {
  const Ring<kSlots> ring = block.RingOf<kSlots>();
  const uint64_t policy = EvictFirstPolicy();
  ChunkWork work{};
  if (block.has_item) work = WorkOf(block.args, block.item, lane);
  int ends[kPhases];
#pragma unroll
  for (int phase = 0, end = 0; phase < kPhases; ++phase) {
    end += ListPieces(block.shares[phase], block.piece_places + end * 4, lane);
    ends[phase] = end;
  }
  __syncwarp();
  const ArmedPart part(block);
  if (lane == 0) {
    PrefetchLayer(block, part, 0);
    PrefetchLayer(block, part, 1);
  }
  RingCursor<kSlots> next{0, 0}, landed{kSlots - kInFlight, 1};
#pragma unroll 1
  for (int layer = 0; layer < block.args.shape.num_layers; ++layer) {
    const DecodeLayerWeights& weights = block.layers[layer];
    if (lane == 0) {
      PrefetchLayer(block, part, layer + 2);
      ArmLayer(block, part, layer);
    }
    const Half* const matrices[kPhases] = {weights.qkv, weights.attention_output, weights.gate_up,
                                           weights.down};
#pragma unroll
    for (int phase = 0; phase < kPhases; ++phase) {
      if (phase == kAttentionOutput && block.has_item)
        StreamKeys<kSlots, kDim>(ring, KvOf(block, layer), work, lane, &next, &landed);
      const int begin = phase == 0 ? 0 : ends[phase - 1];
      if (lane == 0) {
        StreamWeights(ring, matrices[phase], block.piece_places + begin * 4, ends[phase] - begin, policy,
                      &next, &landed);
      }
      next = {__shfl_sync(0xFFFFFFFFu, next.slot, 0), __shfl_sync(0xFFFFFFFFu, next.parity, 0)};
      landed = {__shfl_sync(0xFFFFFFFFu, landed.slot, 0), __shfl_sync(0xFFFFFFFFu, landed.parity, 0)};
    }
  }
  if (lane == 0) AwaitStores();
}

#endif

}  // namespace ridge::kernels::cuda::decode_layers
