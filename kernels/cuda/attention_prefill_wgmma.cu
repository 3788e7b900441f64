// Attention over paged KV for long runs of rows by sm_90a's own instructions: AttentionPrefill's bits.
//
// Geometry: a block has up to 128 virtual rows of an item and a KV head, and all keys that they see, and goes
// on with the next item of its list. Two warpgroups attend with 64 rows each; a warp of a third has the copy
// engine fill a ring of stages of 64 keys, a page of 16 keys and 64 columns a box. S = Q K^T takes both
// operands from shared memory, O += P V has P in registers; 8 columns of ones behind V give l. While a tile's
// P V is multiplied, the next tile's P is made from its scores.
//
// Shared memory: 192 KiB for d = 128. Alignment: q, out, pool 16 bytes. Bytes: K and V of the keys once a
// block. FLOPs: 4 d a key, row and query head, half of them saved by the causal mask. Reference:
// reference::Attention (1 fp16 ulp).
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/tensor_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kTile = kAttentionTile;
[[maybe_unused]] constexpr int kTilePages = kTile / kKvBlockTokens;
constexpr int kGroupThreads = 4 * kWarpThreads;
constexpr int kGroups = 2;      // warpgroups that attend
constexpr int kGroupRows = 64;  // virtual rows of each
constexpr int kFirstCopier = kGroups * kGroupThreads;
constexpr int kThreads = kFirstCopier + kGroupThreads;
constexpr int kStages = 4;
constexpr int kPartBytes = kTile * 128;  // 64 keys or rows of 64 columns
static_assert(kGroups * kGroupRows == kAttentionPrefillRows && kGroupRows == kTile);
// Registers a thread has.
[[maybe_unused]] constexpr int kAttendRegisters = 240, kCopyRegisters = 24;
[[maybe_unused]] constexpr int kChunkTiles = kAttentionChunk / kTile;
[[maybe_unused]] constexpr int kTogether = 4;  // exponentials of a thread

template <int kDim>
struct Shape {
  static constexpr int kParts = kDim / 64;
  static constexpr int kTileBytes = kParts * kPartBytes;           // of K, of V, and of a group's Q
  static constexpr int kStageBytes = 2 * kTileBytes + kPartBytes;  // K, V, ones
  static constexpr int kSharedBytes = kStages * kStageBytes + kGroups * kTileBytes;
};

#if RIDGE_HAS_WGMMA

// Stages are numbered from 0 in the order in which they are filled.
struct Stages {
  uint32_t full, empty;  // shared addresses of the barriers

  __device__ static uint32_t Parity(uint32_t stage) { return stage / kStages & 1; }
  __device__ uint32_t Full(uint32_t stage) const { return full + stage % kStages * 8; }
  __device__ uint32_t Empty(uint32_t stage) const { return empty + stage % kStages * 8; }
  __device__ void AwaitFull(uint32_t stage) const { AwaitBarrier(Full(stage), Parity(stage), 30); }
  // By a warp that reads it no more.
  __device__ void Release(uint32_t stage) const {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) Arrive(Empty(stage));
  }
};

__device__ int NumTiles(int num_keys) {
  return (num_keys + kTile - 1) / kTile;
}

// The warp that has the ring filled: a box a lane. Pages beyond the last one are the last one's: their P is
// 0, and what stands there is finite.
template <int kDim>
__device__ void CopyTiles(const CUtensorMap& map, const AttentionArgs& args, const AttentionItem* items,
                          uint32_t ring, const Stages& stages) {
  using S = Shape<kDim>;
  constexpr int kBoxes = 2 * S::kParts * kTilePages, kBoxBytes = kKvBlockTokens * 128;
  const int lane = threadIdx.x % kWarpThreads, kv_head = blockIdx.x % args.num_kv_heads;
  const int page = lane % kTilePages, part = lane / kTilePages % S::kParts;
  const bool is_value = lane >= kBoxes / 2;
  const uint32_t place = lane * kBoxBytes;
  const auto block_rows = static_cast<int>(args.kv.block_stride / kDim);
  const int head_row = static_cast<int>((is_value ? args.kv.value_offset : args.kv.key_offset) / kDim) +
                       kv_head * kKvBlockTokens;
  uint32_t stage = 0;
  for (int i = blockIdx.x / args.num_kv_heads; i >= 0; i = items[i].next) {
    const int num_keys = items[i].num_keys;
    const int last_page = (num_keys - 1) / kKvBlockTokens, num_tiles = NumTiles(num_keys);
    const int32_t* table = args.block_tables + static_cast<int64_t>(items[i].table_row) * args.table_stride;
    int32_t block = table[min(page, last_page)];
    for (int tile = 0; tile < num_tiles; ++tile, ++stage) {
      const int row = block * block_rows + head_row;
      block = table[min((tile + 1) * kTilePages + page, last_page)];  // a tile before it is needed
      AwaitBarrier(stages.Empty(stage), Stages::Parity(stage) ^ 1, 31);
      if (lane == 0) ArriveExpecting(stages.Full(stage), 2 * S::kTileBytes);
      __syncwarp();
      if (lane < kBoxes)
        CopyBox(ring + stage % kStages * S::kStageBytes + place, map, part * 64, row, stages.Full(stage));
    }
  }
}

// The warpgroup's threads.
__device__ inline void SyncGroup(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}

// The group's queries to shared memory, 64 columns after the other, swizzled for wgmma.
template <int kDim>
__device__ void LoadQueries(const AttentionArgs& args, const AttentionItem& item, int first_virtual,
                            int kv_head, int group, uint8_t* queries) {
  constexpr int kPieces = kDim / kPieceHalves;
  const int last = item.first_virtual + item.num_virtual - 1;
  uint4 values[kGroupRows * kPieces / kGroupThreads];
#pragma unroll
  for (int turn = 0; turn < kGroupRows * kPieces / kGroupThreads; ++turn) {
    const int i = turn * kGroupThreads + threadIdx.x % kGroupThreads;
    const int64_t row = RowOffset(args, item, min(first_virtual + i / kPieces, last), kv_head);
    values[turn] = *reinterpret_cast<const uint4*>(args.q + row + i % kPieces * kPieceHalves);
  }
  SyncGroup(group);  // nobody multiplies those before any more
#pragma unroll
  for (int turn = 0; turn < kGroupRows * kPieces / kGroupThreads; ++turn) {
    const int i = turn * kGroupThreads + threadIdx.x % kGroupThreads;
    const int row = i / kPieces, piece = i % kPieces;
    *reinterpret_cast<uint4*>(queries + piece / 8 * kPartBytes + row * 128 + (piece % 8 ^ row % 8) * 16) =
        values[turn];
  }
  FenceSharedForWgmma();
  SyncGroup(group);
}

// Scores of the group's rows for a tile of keys.
template <int kDim>
__device__ void MultiplyKeys(FragmentC (&scores)[kTile / 8], uint64_t queries, uint64_t keys) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const uint32_t offset = step / 4 * kPartBytes + step % 4 * 32;
    const uint64_t a = AdvanceOperand(queries, offset), b = AdvanceOperand(keys, offset);
    if (step == 0) {
      WgmmaScores<true>(scores, a, b);
    } else {
      WgmmaScores<false>(scores, a, b);
    }
  }
  WgmmaCommit();
}

template <int kDim>
__device__ void MultiplyValues(ChunkState<kDim / 8>& chunk, const FragmentA (&p)[kTile / 16],
                               uint64_t values) {
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step)
    WgmmaValues(chunk.out, chunk.sum, p[step], AdvanceOperand(values, step * 16 * 128));
  WgmmaCommit();
}

template <int kTiles>
__device__ void HoldSums(ChunkState<kTiles>& chunk) {
  HoldFragments(chunk.out);
  FragmentC sum[1] = {chunk.sum};
  HoldFragments(sum);
  chunk.sum = sum[0];
}

// ChunkState::Rescale and Fold as straight code, the same bits: between two series of products a branch
// around their registers would have the compiler copy them, and wait.
template <int kTiles>
__device__ void Rescale(ChunkState<kTiles>& chunk, const float (&max)[2], float c) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float factor = RescaleFactor(chunk.max[row], max[row], c);
    const float alpha = max[row] == chunk.max[row] ? 1.0f : factor;
    chunk.max[row] = max[row];
    chunk.sum.x[2 * row] = __fmul_rn(chunk.sum.x[2 * row], alpha);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      chunk.out[i].x[2 * row] = __fmul_rn(chunk.out[i].x[2 * row], alpha);
      chunk.out[i].x[2 * row + 1] = __fmul_rn(chunk.out[i].x[2 * row + 1], alpha);
    }
  }
}

// Of no chunk yet. Zeros are negative, so that adding them changes no sign.
template <int kTiles>
__device__ void StartFolded(SoftmaxState<kTiles>& folded) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    folded.max[row] = -INFINITY;
    folded.sum[row] = -0.0f;
  }
#pragma unroll
  for (FragmentC& out : folded.out) out = {{-0.0f, -0.0f, -0.0f, -0.0f}};
}

template <int kTiles>
__device__ void FoldChunk(const ChunkState<kTiles>& chunk, float c, SoftmaxState<kTiles>& folded) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    FoldFactors factors = FoldRow(folded.max[row], chunk.max[row], c);
    if (folded.max[row] == -INFINITY) factors = {chunk.max[row], 0.0f, 1.0f};   // the first chunk
    if (chunk.max[row] == -INFINITY) factors = {folded.max[row], 1.0f, -0.0f};  // the row sees nothing of it
    folded.max[row] = factors.max;
    folded.sum[row] = FoldValue(folded.sum[row], chunk.sum.x[2 * row], factors);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      folded.out[i].x[2 * row] = FoldValue(folded.out[i].x[2 * row], chunk.out[i].x[2 * row], factors);
      folded.out[i].x[2 * row + 1] =
          FoldValue(folded.out[i].x[2 * row + 1], chunk.out[i].x[2 * row + 1], factors);
    }
  }
}

// Of a tile of keys: scores become what P is rounded from. `max`: before, and then after it.
__device__ void TakeExponentials(FragmentC (&scores)[kTile / 8], int first_key, const int (&positions)[2],
                                 float c, unsigned lane, float (&max)[2]) {
  if (__any_sync(0xFFFFFFFFu, first_key + kTile - 1 > positions[0])) {
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) MaskScores(scores[i], first_key + 8 * i, positions, lane);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float tile_max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i)
      tile_max = fmaxf(tile_max, fmaxf(scores[i].x[2 * row], scores[i].x[2 * row + 1]));
    max[row] = fmaxf(max[row], RowMax(tile_max));
    const float offset = ScoreOffset(max[row], c);
#pragma unroll
    for (int first = 0; first < kTile / 8; first += kTogether / 2) {
      float x[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        x[i] = __fmaf_rn(scores[first + i / 2].x[2 * row + i % 2], c, offset);
      Exp2ForHalf(x);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) scores[first + i / 2].x[2 * row + i % 2] = x[i];
    }
  }
}

// P as operands, from what TakeExponentials leaves.
__device__ void RoundProbabilities(const FragmentC (&scores)[kTile / 8], FragmentA (&p)[kTile / 16]) {
#pragma unroll
  for (int i = 0; i < kTile / 8; ++i) {
    p[i / 2].x[i % 2 * 2] = PackHalves(scores[i].x[0], scores[i].x[1]);
    p[i / 2].x[i % 2 * 2 + 1] = PackHalves(scores[i].x[2], scores[i].x[3]);
  }
}

// StoreOutput's bits by less code: a row's sum, which is between 1/2 and 2^24, has its reciprocal taken once,
// and each quotient is corrected twice, as division does it.
template <int kTiles>
__device__ void StoreQuotients(const AttentionArgs& args, const LaneRows& rows, SoftmaxState<kTiles>& state,
                               unsigned lane) {
  float largest = 0.0f;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float sum = state.sum[row];
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
    inverse = __fmaf_rn(inverse, __fmaf_rn(-sum, inverse, 1.0f), inverse);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      for (float* x : {&state.out[i].x[2 * row], &state.out[i].x[2 * row + 1]}) {
        float quotient = __fmul_rn(*x, inverse);
        quotient = __fmaf_rn(inverse, __fmaf_rn(-sum, quotient, *x), quotient);
        quotient = __fmaf_rn(inverse, __fmaf_rn(-sum, quotient, *x), quotient);
        *x = copysignf(quotient, *x);  // a zero's, too
        largest = fmaxf(largest, fabsf(quotient));
      }
    }
  }
  const bool saturates = largest > kHalfMax;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (!rows.valid[row]) continue;
    auto* out = reinterpret_cast<__half2*>(args.out + rows.offset[row]) + lane % 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float low = state.out[i].x[2 * row], high = state.out[i].x[2 * row + 1];
      out[i * 4] = saturates ? SaturateToHalf2(low, high, args.saturations) : __floats2half2_rn(low, high);
    }
  }
}

// A warpgroup's rows of an item, whose tiles are in the stages from `stage` on.
template <int kDim>
__device__ void AttendItem(const AttentionArgs& args, const AttentionItem& item, int group, uint32_t ring,
                           const Stages& stages, uint32_t stage, uint8_t* query_tiles) {
  using S = Shape<kDim>;
  const int warp = threadIdx.x % kGroupThreads / kWarpThreads, kv_head = blockIdx.x % args.num_kv_heads;
  const unsigned lane = threadIdx.x % kWarpThreads;
  const int first_virtual = item.first_virtual + group * kGroupRows;
  const int num_virtual = min(item.num_virtual - group * kGroupRows, kGroupRows);
  const int heads = args.num_heads / args.num_kv_heads;
  // That the group's last row sees.
  const int num_tiles =
      num_virtual > 0 ? NumTiles(item.first_position + (first_virtual + num_virtual - 1) / heads + 1) : 0;
  if (num_tiles > 0) {
    const float c = ScoreScale(kDim);
    uint8_t* queries = query_tiles + group * S::kTileBytes;
    const uint64_t q = SwizzledOperand(SharedAddress(queries));
    LoadQueries<kDim>(args, item, first_virtual, kv_head, group, queries);
    const LaneRows rows = MakeLaneRows(args, item, first_virtual + warp * 16, kv_head, lane);
    const auto keys = [&](int tile) {
      return AdvanceOperand(SwizzledOperand(ring), (stage + tile) % kStages * S::kStageBytes);
    };
    const auto values = [&](int tile) {
      return AdvanceOperand(SwizzledTransposed(ring + S::kTileBytes, kPartBytes),
                            (stage + tile) % kStages * S::kStageBytes);
    };
    FragmentC scores[kTile / 8];
    FragmentA p[kTile / 16];
    ChunkState<kDim / 8> chunk;
    SoftmaxState<kDim / 8> folded;
    chunk.Start();
    StartFolded(folded);
    stages.AwaitFull(stage);
    WgmmaFence();
    MultiplyKeys<kDim>(scores, q, keys(0));
    WgmmaWait<0>();
    HoldFragments(scores);
    TakeExponentials(scores, 0, rows.position, c, lane, chunk.max);
    RoundProbabilities(scores, p);
    if (num_tiles > 1) stages.AwaitFull(stage + 1);
#pragma unroll 1
    for (int tile = 1; tile < num_tiles; ++tile) {
      const bool fresh = tile % kChunkTiles == 0;
      WgmmaFence();
      MultiplyKeys<kDim>(scores, q, keys(tile));
      MultiplyValues<kDim>(chunk, p, values(tile - 1));
      if (tile + 1 < num_tiles) stages.AwaitFull(stage + tile + 1);
      WgmmaWait<1>();
      HoldFragments(scores);
      float max[2] = {fresh ? -INFINITY : chunk.max[0], fresh ? -INFINITY : chunk.max[1]};
      TakeExponentials(scores, tile * kTile, rows.position, c, lane, max);
      MakeBefore(scores, args.num_heads);
      WgmmaWait<0>();
      HoldFragments(scores);
      HoldSums(chunk);
      RoundProbabilities(scores, p);
      stages.Release(stage + tile - 1);
      if (fresh) {
        FoldChunk(chunk, c, folded);
        chunk.Start();
        chunk.max[0] = max[0];
        chunk.max[1] = max[1];
      } else {
        Rescale(chunk, max, c);
      }
      HoldSums(chunk);
    }
    HoldSums(chunk);
    WgmmaFence();
    MultiplyValues<kDim>(chunk, p, values(num_tiles - 1));
    WgmmaWait<0>();
    HoldSums(chunk);
    stages.Release(stage + num_tiles - 1);
    FoldChunk(chunk, c, folded);
    StoreQuotients(args, rows, folded, lane);
  }
  for (int tile = num_tiles; tile < NumTiles(item.num_keys); ++tile) {  // that the other group sees
    stages.AwaitFull(stage + tile);
    stages.Release(stage + tile);
  }
}

#endif

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    AttentionPrefillWgmmaKernel(const __grid_constant__ CUtensorMap map,
                                const __grid_constant__ AttentionArgs args, const AttentionItem* items) {
#if RIDGE_HAS_WGMMA
  using S = Shape<kDim>;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t barriers[2 * kStages];
  const uint32_t ring = SharedAddress(shared);
  Stages stages;
  stages.full = SharedAddress(barriers);
  stages.empty = stages.full + kStages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(stages.full + i * 8, 1);
      InitBarrier(stages.empty + i * 8, kFirstCopier / kWarpThreads);
    }
    FenceBarrierInit();
  }
  for (int i = threadIdx.x; i < kStages * kPartBytes / 16; i += kThreads) {
    const int stage = i / (kPartBytes / 16), piece = i % (kPartBytes / 16);
    constexpr uint32_t kOnes = 0x3C003C00u;
    *reinterpret_cast<uint4*>(shared + stage * S::kStageBytes + 2 * S::kTileBytes + piece * 16) =
        make_uint4(kOnes, kOnes, kOnes, kOnes);
  }
  FenceSharedForWgmma();
  __syncthreads();
  WaitForPriorKernel();
  LaunchNextKernel();
  if (threadIdx.x < kFirstCopier) {
    SetRegisters<kAttendRegisters, true>();
    const int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / kGroupThreads, 0);
    uint32_t stage = 0;
    for (int i = blockIdx.x / args.num_kv_heads; i >= 0; i = items[i].next) {
      AttendItem<kDim>(args, items[i], group, ring, stages, stage, shared + kStages * S::kStageBytes);
      stage += NumTiles(items[i].num_keys);
    }
  } else {
    SetRegisters<kCopyRegisters, false>();
    if (threadIdx.x < kFirstCopier + kWarpThreads) CopyTiles<kDim>(map, args, items, ring, stages);
  }
#endif
}

template <int kDim>
cudaError_t Launch(const AttentionArgs& args, const AttentionItem* items, int32_t num_lists,
                   cudaStream_t stream) {
  constexpr int kBytes = Shape<kDim>::kSharedBytes;
  CUtensorMap map;
  // The whole pool as rows of one head's key or value; how many there are does not matter.
  cudaError_t error = MapRows(args.kv.pool, INT32_MAX, kDim, kKvBlockTokens, &map);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(AttentionPrefillWgmmaKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(AttentionPrefillWgmmaKernel<kDim>, dim3(num_lists * args.num_kv_heads), kThreads,
                         kBytes, stream, map, args, items);
}

}  // namespace

cudaError_t LaunchAttentionPrefillWgmma(const AttentionArgs& args, const AttentionItem* items,
                                        int32_t num_items, int32_t num_sms, cudaStream_t stream) {
  if (!HasWgmma()) return cudaErrorInvalidValue;
  const int32_t num_lists = std::min(num_items, std::max(num_sms / args.num_kv_heads, 1));
  if (args.head_dim == 64) return Launch<64>(args, items, num_lists, stream);
  if (args.head_dim == 128) return Launch<128>(args, items, num_lists, stream);
  return cudaErrorInvalidValue;
}

}  // namespace ridge::kernels::cuda
