// What the warps of a block of the decode-layers kernel (decode_layers.cu) know in common.
#pragma once

#include "kernels/cuda/decode_layers.cuh"
#include "kernels/cuda/handover.cuh"

namespace ridge::kernels::cuda::decode_layers {

#if __CUDA_ARCH__ >= 900

constexpr int kProducer = kConsumerWarps;  // the warps behind it finish
// Named barriers: of all multiplying warps, and of those that do attention.
constexpr int kConsumersBarrier = 1, kAttentionBarrier = 2;

// Where waiting threads are, for SpinGuard.
enum Waits { kWaitSums = 10, kWaitSumSlot, kWaitNorm, kWaitRows, kWaitQueries, kWaitPartials, kWaitDown };

template <int kThreads>
__device__ inline void SyncWarps(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// What a launch's words are tagged with, in layer `layer`: never 0, which fresh memory has.
struct Tags {
  uint32_t first;
  __device__ uint32_t Of(int layer) const { return first + layer; }
};

// The matrices of a layer, in the order in which they are used.
enum Phase { kQkv, kAttentionOutput, kGateUp, kDown, kPhases };

// What all roles of a block know; in shared memory, since it would fill their registers.
struct Block {
  DecodeLayersArgs args;
  const DecodeLayerWeights* layers;  // shared memory
  DecodeLayersWords words;
  uint32_t* armed;                      // of this launch: [layers][kMaxDecodeLayersRows][kArmedRow]
  uint32_t* arming;                     // of the launch before
  int arming_rows;                      // that it had
  int armed_words;                      // of a row that the shape has
  uint32_t ring_pieces, ring_barriers;  // shared addresses, as are the next eight
  uint32_t piece_places;                // [pieces of a layer]: where they begin in their matrix
  uint32_t x;
  uint32_t all_armed;    // kArmedBytes
  uint32_t norm_sums;    // [rows][kNormHalves] floats: of groups, then zeros
  uint32_t norm_scales;  // [rows] floats
  uint32_t sums;         // of [kSumSlots] units
  uint32_t sums_stored;  // [kSumSlots]: chunks' sums that were put there, over all units
  uint32_t sums_taken;   // likewise: units whose sums were taken
  int sum_tokens;
  int sum_bytes;               // of a slot
  int chunk_tiles_reciprocal;  // of gate/up's tiles that make a chunk of down: 2^20 over them, rounded up
  int groups_reciprocal;  // of a row's groups of a norm: 2^16 over them, rounded up; exact for kNormHalves
  float* residual;        // [owned][rows][16]
  RopePlace* places;      // [qkv units][rows][8]
  Tags tags;
  int rows;
  int q_size, qkv_size;
  MatrixShare shares[kPhases];
  bool has_item;  // of attention
  AttentionItem item;
  ChunkWork work;  // without its pages

  __device__ uint32_t Sums(uint32_t unit) const { return sums + unit % kSumSlots * sum_bytes; }
  __device__ uint32_t* Armed(int layer, int row, ArmedPlace place) const {
    return armed + (static_cast<int64_t>(layer) * kMaxDecodeLayersRows + row) * kArmedRow + place;
  }
  template <int kSlots>
  __device__ Ring<kSlots> RingOf() const {
    return {ring_pieces, ring_barriers};
  }
};

// Functions that are no part of their caller, so that each has the registers to itself, take the block by its
// shared address.
__device__ inline const Block& BlockAt(uint32_t shared_address) {
  return *static_cast<const Block*>(__cvta_shared_to_generic(shared_address));
}

__device__ inline KvLayer KvOf(const Block& block, int layer) {
  KvLayer kv = block.args.rope.kv;
  kv.key_offset += layer * block.args.kv_layer_stride;
  kv.value_offset += layer * block.args.kv_layer_stride;
  return kv;
}

// Of the block's item.
__device__ inline ChunkWork WorkOf(const DecodeLayersArgs& args, const AttentionItem& item, int lane) {
  return MakeChunkWork(args.rope.block_tables, args.rope.table_stride, item,
                       static_cast<int>(blockIdx.x % args.shape.num_kv_heads), lane);
}

__device__ inline uint32_t WordOf(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Keys of a piece, and pieces of a chunk's keys (as many of its values).
template <int kDim>
constexpr int kPieceKeys = kPieceSize / (kDim * 2);
template <int kDim>
__device__ inline int KeyPieces(const ChunkWork& work) {
  return work.num_tiles * (kAttentionTile / kPieceKeys<kDim>);
}

// Counts in shared memory, one a slot of sums: they only grow, so that nobody mistakes one use of a slot for
// another.
__device__ inline void AwaitCount(uint32_t counts, uint32_t unit, uint32_t count, int place) {
  const SpinGuard guard(place);
  while (LoadSharedAcquire(counts + unit % kSumSlots * 4) < count) guard.Turn();
}

// A lane's half and its neighbour's as a word; an odd lane's is the second.
__device__ inline uint32_t PackWithNeighbour(__half mine, __half others, int lane) {
  const uint32_t a = __half_as_ushort(mine), b = __half_as_ushort(others);
  return lane % 2 == 0 ? a | b << 16 : b | a << 16;
}

__device__ inline __half FromNeighbour(__half value) {
  return __ushort_as_half(static_cast<unsigned short>(
      __shfl_xor_sync(0xFFFFFFFFu, static_cast<uint32_t>(__half_as_ushort(value)), 1)));
}

#endif

}  // namespace ridge::kernels::cuda::decode_layers
