// Norm, gate/up, SwiGLU and down of 5 to 64 rows: W_down fp16(SiLU(W_gate x) * W_up x), as sums of chunks of
// K; up to 8 rows also the matmul before the norm, of attention's output.
//
// Geometry: a block a multiprocessor, all of them at once. One thread has the copy engine fill a ring with
// the block's weights, in slots of 64 columns, from before the kernel waits to the last of down's: as far
// ahead as there is room, but a few slots at a time. Another has a second ring filled with x. Three
// warpgroups multiply: W is the A operand from registers, as it is packed, tokens the B operand in shared
// memory. Gate/up: a warp has a row tile and all of K. Down and attention's output: a block has one chunk of
// K of some row tiles, and leaves its sums. A row's norm is made by the warps that multiply, one row a block.
// Blocks tell each other by counters in global memory: units of attention's output that are written; rows
// that are normed; row tiles of gate/up that are written, by the chunk of down's K that they belong to. The
// last block to end sets them to zero.
//
// Bits: those of the kernels of rms_norm.h and matmul.h, their reference too. Shared memory: the rings, all
// that there is. Bytes: 6 mlp hidden, once, and x once a block from L2. FLOPs: 6 m mlp hidden on m padded to
// 8, 32 or 64.
#include "kernels/cuda/mlp.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_batch_output.cuh"
#include "kernels/cuda/mlp_shape.h"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/rms_norm_partials.cuh"
#include "kernels/cuda/tensor_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kWarpgroupThreads = 128;
constexpr int kGroups = kMlpMostTiles / 4;
constexpr int kMultipliers = kGroups * kWarpgroupThreads;
constexpr int kThreads = kMultipliers + kWarpgroupThreads;
// Registers a thread of those that multiply has, and of the last warpgroup, which copies.
[[maybe_unused]] constexpr int kMultiplyRegisters = 160, kCopyRegisters = 32;
constexpr int kSliceSteps = kMlpSliceColumns / kTileDepth;
static_assert(kMlpSliceColumns == kStageDepth);

__host__ __device__ int CeilDivide(int a, int b) {
  return (a + b - 1) / b;
}

struct MlpParameters {
  CUtensorMap attention, normed, gated;  // x
  // Weights; gate/up's by blocks with the most row tiles, and by those with one fewer.
  CUtensorMap project, most_tiles, fewer_tiles, down;
  MlpArgs args;
  MlpPlan plan;
};

// Counters of MlpArgs.
enum Counter { kProjectedUnits, kNormedRows, kEndedBlocks, kGatedTiles };
// In cache lines of their own.
[[maybe_unused]] constexpr int kCounterStride = 32;

#if RIDGE_HAS_WGMMA

// Where threads wait, for SpinGuard.
enum Waits {
  kWaitWeights = 40,
  kWaitTokens,
  kWaitWeightSlot,
  kWaitTokenSlot,
  kWaitProjected,
  kWaitNormed,
  kWaitGated
};

// Barriers in shared memory: "full" ends its phase when what was copied has landed, "empty" when all warps
// have left it.
struct Barriers {
  uint64_t full_weights[kMlpMostSlots], empty_weights[kMlpMostSlots];
  uint64_t full_tokens[kMlpTokenSlots], empty_tokens[kMlpTokenSlots];
};

// A place in a ring that moves slot by slot.
struct Cursor {
  uint32_t slot = 0;
  uint32_t parity = 0;

  __device__ void Advance(uint32_t slots) {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};

// A ring, by shared addresses.
struct SlotRing {
  uint32_t memory, bytes, slots;  // bytes: of a slot
  uint32_t full, empty;

  __device__ uint32_t Slot(const Cursor& at) const { return memory + at.slot * bytes; }
  __device__ uint32_t Full(const Cursor& at) const { return full + at.slot * 8; }
  __device__ void AwaitFull(const Cursor& at, int place) const { AwaitBarrier(Full(at), at.parity, place); }
  __device__ void AwaitEmpty(const Cursor& at, int place) const {
    AwaitBarrier(empty + at.slot * 8, at.parity ^ 1, place);
  }
  __device__ void Release(uint32_t slot) const { Arrive(empty + slot * 8); }
};

// A block's row tiles of gate/up; the first blocks, which also have other things to do, have the fewest.
struct GateShare {
  int first, count;

  __device__ explicit GateShare(int tiles) {
    const int blocks = gridDim.x, each = tiles / blocks, with_more = blocks - tiles % blocks;
    const int index = blockIdx.x;
    count = each + (index >= with_more);
    first = index * each + max(0, index - with_more);
  }
};

// A block's part of a matmul of which blocks have one chunk of K: the first blocks, `unit_tiles` row tiles
// each (some of the last may be beyond n).
struct ChunkUnit {
  int chunk, first_tile;
  int begin, steps;  // along k

  __device__ ChunkUnit(const MatmulArgs& args, int unit_tiles) {
    const int groups = CeilDivide(static_cast<int>(NumRowTiles(args.n)), unit_tiles);
    const int chunk_steps = static_cast<int>(DotChunk(args.k)) / kTileDepth;
    chunk = static_cast<int>(blockIdx.x) / groups;
    first_tile = static_cast<int>(blockIdx.x) % groups * unit_tiles;
    begin = chunk * chunk_steps;
    steps = min(chunk_steps, args.k / kTileDepth - begin);
  }
  __device__ int Slices() const { return steps / kSliceSteps; }
};

__device__ inline void SyncMultipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
}

// Before the copy engine reads what other threads wrote and this one has seen to be there.
__device__ inline void FenceForCopyEngine() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Adds to a counter what this thread, and those that it has synchronised with, have written.
__device__ inline void Count(int32_t* counter, int count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
}

// A box of packed weights, which are read once: k steps from `step` on, row tiles from `tile` on.
__device__ inline void CopyBoxOnce(uint32_t to, const CUtensorMap& map, int step, int tile, uint32_t barrier,
                                   uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(0), "r"(step), "r"(tile), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ inline void AwaitCount(const int32_t* counter, int count, int place) {
  const SpinGuard guard(place);
  int value;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    guard.Turn();
  } while (value < count);
}

// Has the ring filled with all weights of the block, by one thread.
__device__ void CopyWeights(const MlpParameters& p, const SlotRing& ring) {
  const uint64_t policy = EvictFirstPolicy();
  Cursor at, landed;
  int under_way = 0, limit = p.plan.in_flight_ahead;
  // Whatever else a multiprocessor asks for, and its fences, wait behind the weights that are under way: not
  // more of them than it takes to keep memory busy, and fewer where the block also waits for others.
  const auto begin_slot = [&](int tiles) {
    ring.AwaitEmpty(at, kWaitWeightSlot);
    for (; under_way >= limit; --under_way) {
      ring.AwaitFull(landed, kWaitWeights);
      landed.Advance(ring.slots);
    }
    ++under_way;
    ArriveExpecting(ring.Full(at), tiles * kMlpTileBytes);
  };
  const MatmulArgs& gate_up = p.args.gate_up;
  const int block = blockIdx.x, tiles = static_cast<int>(NumRowTiles(gate_up.n));
  const GateShare share(tiles);
  const CUtensorMap& map =
      share.count == CeilDivide(tiles, static_cast<int>(gridDim.x)) ? p.most_tiles : p.fewer_tiles;
  PrefetchMap(map);
  PrefetchMap(p.down);
  if (block < p.plan.project_units) {
    const ChunkUnit unit(p.args.project, kMlpProjectTiles);
    for (int slice = 0; slice < unit.Slices(); ++slice) {
      begin_slot(kMlpProjectTiles);
      CopyBoxOnce(ring.Slot(at), p.project, unit.begin + slice * kSliceSteps, unit.first_tile, ring.Full(at),
                  policy);
      at.Advance(ring.slots);
    }
  }
  const int slices = gate_up.k / kMlpSliceColumns;
  for (int slice = 0; slice < slices; ++slice) {
    const int step = slice * kSliceSteps;
    if (slice == static_cast<int>(ring.slots)) limit = p.plan.in_flight;
    begin_slot(share.count);
    if (share.count > 0) CopyBoxOnce(ring.Slot(at), map, step, share.first, ring.Full(at), policy);
    at.Advance(ring.slots);
  }
  if (block >= p.plan.down_units) return;
  const ChunkUnit unit(p.args.down, kMlpUnitTiles);
  limit = p.plan.in_flight_ahead;
  for (int slice = 0; slice < unit.Slices(); slice += kMlpUnitSlices) {
    if (slice == static_cast<int>(ring.slots) * kMlpUnitSlices) limit = p.plan.in_flight;
    begin_slot(kMlpUnitSlices * kMlpUnitTiles);
    for (int i = 0; i < kMlpUnitSlices; ++i) {
      CopyBoxOnce(ring.Slot(at) + i * kMlpUnitTiles * kMlpTileBytes, p.down,
                  unit.begin + (slice + i) * kSliceSteps, unit.first_tile, ring.Full(at), policy);
    }
    at.Advance(ring.slots);
  }
}

// Has the ring filled with x of attention's output matmul, of gate/up, and of down, by one thread.
template <int kTokens>
__device__ void CopyTokens(const MlpParameters& p, const SlotRing& ring) {
  const int32_t* counters = p.args.counters;
  Cursor at;
  const auto copy = [&](const CUtensorMap& map, int first_step, int slices) {
    for (int slice = 0; slice < slices; ++slice) {
      ring.AwaitEmpty(at, kWaitTokenSlot);
      ArriveExpecting(ring.Full(at), kTokens * kTokenBytes);
      CopyBox(ring.Slot(at), map, first_step * kTileDepth + slice * kMlpSliceColumns, 0, ring.Full(at), 1);
      at.Advance(ring.slots);
    }
  };
  const int block = blockIdx.x;
  if (block < p.plan.project_units) PrefetchMap(p.attention);
  PrefetchMap(p.normed);
  PrefetchMap(p.gated);
  WaitForPriorKernel();
  if (block < p.plan.project_units) {
    const ChunkUnit unit(p.args.project, kMlpProjectTiles);
    copy(p.attention, unit.begin, unit.Slices());
  }
  AwaitCount(counters + kNormedRows * kCounterStride, p.args.gate_up.m, kWaitNormed);
  FenceForCopyEngine();
  copy(p.normed, 0, p.args.gate_up.k / kMlpSliceColumns);
  if (block >= p.plan.down_units) return;
  const ChunkUnit unit(p.args.down, kMlpUnitTiles);
  AwaitCount(counters + (kGatedTiles + unit.chunk) * kCounterStride, unit.steps * kTileDepth / 8, kWaitGated);
  FenceForCopyEngine();
  copy(p.gated, unit.begin, unit.Slices());
}

// Where a warp stands in both rings.
struct Reader {
  const SlotRing& weights;
  const SlotRing& tokens;
  Cursor weights_at, tokens_at;
};

// c += the products of a slice of kColumns tokens: this warp's weights from `weights` on, tokens from
// `tokens` on. They are under way when this returns.
template <int kColumns>
__device__ inline void MultiplySlice(float (&c)[kColumns / 2], FragmentA (&a)[kSliceSteps], uint32_t weights,
                                     uint32_t tokens, int lane) {
#pragma unroll
  for (int i = 0; i < kSliceSteps; ++i) a[i] = LoadStageA(weights, 0, i, lane);
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < kSliceSteps; ++i) Wgmma(c, a[i], SwizzledOperand(tokens + i * kTileDepth * 2));
  WgmmaCommit();
}

// The sums of this warp's row tile, `tile` bytes behind the first in each slot, over k columns.
template <int kTokens>
__device__ void MultiplyTile(int k, uint32_t tile, Reader* reader, int lane,
                             FragmentC (&total)[kTokens / 8]) {
  constexpr int kChunkSlices = kNormGroup / kMlpSliceColumns;  // K's chunks are of 256 columns
  uint32_t weights_slot = 0, tokens_slot = 0;                  // of the slice before
  const auto release = [&] {
    if (lane != 0) return;
    reader->weights.Release(weights_slot);
    reader->tokens.Release(tokens_slot);
  };
#pragma unroll
  for (FragmentC& fragment : total) fragment = {{kNoTotal, kNoTotal, kNoTotal, kNoTotal}};
#pragma unroll 1
  for (int left = k / kMlpSliceColumns; left > 0; left -= kChunkSlices) {
    float c[kTokens / 2] = {};
    FragmentA a[2][kSliceSteps];
    bool pending = false;  // the slice before is still being multiplied
#pragma unroll 1
    for (int slices = min(left, kChunkSlices); slices > 0; slices -= 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        reader->weights.AwaitFull(reader->weights_at, kWaitWeights);
        reader->tokens.AwaitFull(reader->tokens_at, kWaitTokens);
        MultiplySlice<kTokens>(c, a[half], reader->weights.Slot(reader->weights_at) + tile,
                               reader->tokens.Slot(reader->tokens_at), lane);
        WgmmaWait<1>();
        if (half == 1 || pending) release();
        weights_slot = reader->weights_at.slot;
        tokens_slot = reader->tokens_at.slot;
        reader->weights_at.Advance(reader->weights.slots);
        reader->tokens_at.Advance(reader->tokens.slots);
      }
      pending = true;
    }
    WgmmaWait<0>();
    release();
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) total[i / 4].x[i % 4] = __fadd_rn(total[i / 4].x[i % 4], c[i]);
  }
}

// What a warp without a row tile does meanwhile.
__device__ void SkipTile(int k, Reader* reader, int lane) {
#pragma unroll 1
  for (int left = k / kMlpSliceColumns; left > 0; --left) {
    reader->weights.AwaitFull(reader->weights_at, kWaitWeights);
    reader->tokens.AwaitFull(reader->tokens_at, kWaitTokens);
    if (lane == 0) {
      reader->weights.Release(reader->weights_at.slot);
      reader->tokens.Release(reader->tokens_at.slot);
    }
    reader->weights_at.Advance(reader->weights.slots);
    reader->tokens_at.Advance(reader->tokens.slots);
  }
}

// Down: warpgroups that share the tokens of a block's row tiles.
template <int kTokens>
constexpr int kDownGroups = kTokens / 32 > 1 ? kTokens / 32 : 1;

template <int kTokens>
__device__ void MultiplyDown(const MatmulArgs& down, Reader* reader, int warp, int lane) {
  const ChunkUnit unit(down, kMlpUnitTiles);
  constexpr int kColumns = kTokens / kDownGroups<kTokens>;
  const int group = warp / 4;
  // As many arrivals at a barrier as from all warps in gate/up.
  constexpr int kArrivals = kGroups / kDownGroups<kTokens>, kOdd = kGroups % kDownGroups<kTokens>;
  const bool arrives = lane < kArrivals + (group < kOdd);
  float c[kColumns / 2] = {};
  FragmentA a[kMlpUnitSlices][kSliceSteps];
  uint32_t weights_slot = 0, tokens_slot = 0;  // of the slice before
  bool pending = false;                        // it is still being multiplied
  int slices = unit.Slices();
  do {
    reader->weights.AwaitFull(reader->weights_at, kWaitWeights);
    const uint32_t weights = reader->weights.Slot(reader->weights_at) + warp % 4 * kMlpTileBytes;
#pragma unroll
    for (int i = 0; i < kMlpUnitSlices; ++i) {
      reader->tokens.AwaitFull(reader->tokens_at, kWaitTokens);
      MultiplySlice<kColumns>(c, a[i], weights + i * kMlpUnitTiles * kMlpTileBytes,
                              reader->tokens.Slot(reader->tokens_at) + group * kColumns * kTokenBytes, lane);
      WgmmaWait<1>();
      if (arrives && (i > 0 || pending)) reader->tokens.Release(tokens_slot);
      if (arrives && i == 0 && pending) reader->weights.Release(weights_slot);
      tokens_slot = reader->tokens_at.slot;
      reader->tokens_at.Advance(reader->tokens.slots);
    }
    pending = true;
    weights_slot = reader->weights_at.slot;
    reader->weights_at.Advance(reader->weights.slots);
    slices -= kMlpUnitSlices;
  } while (slices > 0);
  WgmmaWait<0>();  // nobody waits for the last slots
  FragmentC sums[kColumns / 8];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[i / 4].x[i % 4] = c[i];
  // Rows of tiles that are not there are beyond n.
  WritePartials(down, sums, unit.chunk, (unit.first_tile + warp % 4) * kTileRows + lane / 4, group * kColumns,
                lane);
}

// Counts the block's row tiles of gate/up by the chunk of down's K that they are part of.
__device__ inline void CountGated(const MlpArgs& args, const GateShare& share) {
  const int chunk_tiles = static_cast<int>(DotChunk(args.down.k)) / 8, end = share.first + share.count;
  for (int tile = share.first; tile < end;) {
    const int chunk = tile / chunk_tiles, next = min((chunk + 1) * chunk_tiles, end);
    Count(args.counters + (kGatedTiles + chunk) * kCounterStride, next - tile);
    tile = next;
  }
}

// The norm of a row, where the block has one.
template <int kTokens>
__device__ void NormRow(const MlpParameters& p, float* values, float* sums) {
  const int row = blockIdx.x;
  if (row >= p.args.norm.num_rows) return;
  const auto wait = [&] {
    WaitForPriorKernel();
    if (!MlpProjects(kTokens)) return;
    if (threadIdx.x == 0)
      AwaitCount(p.args.counters + kProjectedUnits * kCounterStride, p.plan.project_units, kWaitProjected);
    SyncMultipliers();
  };
  NormWithPartials<kMultipliers, kMaxMlpHidden>(p.args.norm, row, threadIdx.x, values, sums, wait,
                                                [] { SyncMultipliers(); });
  SyncMultipliers();
  if (threadIdx.x == 0) Count(p.args.counters + kNormedRows * kCounterStride, 1);
}

// The warps that multiply.
template <int kTokens>
__device__ void Multiply(const MlpParameters& p, const SlotRing& weights, const SlotRing& tokens,
                         float* values, float* norm_sums) {
  const MlpArgs& args = p.args;
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads, block = blockIdx.x;
  Reader reader{weights, tokens, {}, {}};
  // Attention's output matmul, where it is this kernel's, then gate/up: by the same code.
  const bool has_unit = MlpProjects(kTokens) && block < p.plan.project_units;
#pragma unroll 1
  for (bool gate_up = !has_unit;; gate_up = true) {
    if (gate_up) NormRow<kTokens>(p, values, norm_sums);
    const GateShare share(static_cast<int>(NumRowTiles(args.gate_up.n)));
    const ChunkUnit unit(args.project, kMlpProjectTiles);
    const int columns = gate_up ? args.gate_up.k : unit.steps * kTileDepth;
    const int tiles = gate_up ? share.count : kMlpProjectTiles;
    if (warp / 4 * 4 < tiles) {
      FragmentC total[kTokens / 8];
      MultiplyTile<kTokens>(columns, min(warp, tiles - 1) * kMlpTileBytes, &reader, lane, total);
      const int row = ((gate_up ? share.first : unit.first_tile) + warp) * kTileRows + lane / 4;
      if (!gate_up) {
        WritePartials(args.project, total, unit.chunk, row, 0, lane);
      } else if (warp < tiles) {
        WriteGatedTogether(args.gate_up, total, row, lane);
      }
    } else {
      SkipTile(columns, &reader, lane);
    }
    SyncMultipliers();
    if (threadIdx.x == 0 && !gate_up) Count(args.counters + kProjectedUnits * kCounterStride, 1);
    if (threadIdx.x == 0 && gate_up) CountGated(args, share);
    if (gate_up) break;
  }
  if (block < p.plan.down_units && warp < 4 * kDownGroups<kTokens>)
    MultiplyDown<kTokens>(args.down, &reader, warp, lane);
}

#endif

template <int kTokens>
__global__ void __launch_bounds__(kThreads, 1) MlpKernel(const __grid_constant__ MlpParameters p) {
#if RIDGE_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) float values[kMaxMlpHidden];
  __shared__ float norm_sums[NormGroups(kMaxMlpHidden)];
  __shared__ Barriers barriers;
  constexpr uint32_t kTokenSlotBytes = kTokens * kTokenBytes;
  const SlotRing tokens = {SharedAddress(shared), kTokenSlotBytes, kMlpTokenSlots,
                           SharedAddress(barriers.full_tokens), SharedAddress(barriers.empty_tokens)};
  const SlotRing weights = {tokens.memory + tokens.slots * kTokenSlotBytes,
                            static_cast<uint32_t>(p.plan.slot_bytes), static_cast<uint32_t>(p.plan.slots),
                            SharedAddress(barriers.full_weights), SharedAddress(barriers.empty_weights)};
  if (threadIdx.x < kWarpThreads) {
    for (const SlotRing& ring : {weights, tokens}) {
      if (threadIdx.x >= ring.slots) continue;
      InitBarrier(ring.full + threadIdx.x * 8, 1);
      InitBarrier(ring.empty + threadIdx.x * 8, kMultipliers / kWarpThreads);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  LaunchNextKernel();
  if (threadIdx.x < kMultipliers) {
    SetRegisters<kMultiplyRegisters, true>();
    Multiply<kTokens>(p, weights, tokens, values, norm_sums);
  } else {
    SetRegisters<kCopyRegisters, false>();
    if (threadIdx.x == kMultipliers) CopyWeights(p, weights);
    if (threadIdx.x == kMultipliers + kWarpThreads) CopyTokens<kTokens>(p, tokens);
  }
  __syncthreads();
  // Nobody of this block looks at a counter any more.
  if (threadIdx.x == 0 &&
      atomicAdd(p.args.counters + kEndedBlocks * kCounterStride, 1) == static_cast<int>(gridDim.x) - 1) {
    for (int i = 0; i < kMlpCounters; i += kCounterStride) p.args.counters[i] = 0;
  }
#endif
}

template <int kTokens>
cudaError_t Prepare() {
  int device = 0, shared = 0;
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, MlpKernel<kTokens>);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(MlpKernel<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared - static_cast<int>(attributes.sharedSizeBytes));
}

}  // namespace

cudaError_t PrepareMlp() {
  if (!HasWgmma()) return cudaSuccess;
  for (cudaError_t (*prepare)() : {Prepare<8>, Prepare<32>, Prepare<64>}) {
    if (cudaError_t error = prepare(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchMlp(const MlpPlan& plan, const MlpArgs& args, cudaStream_t stream) {
  const int32_t m = args.gate_up.m;
  if (!plan.possible || m > plan.tokens || args.gate_up.bias != nullptr || args.norm.partials == nullptr ||
      args.project.m != m || args.norm.num_rows != m || args.down.m != m)
    return cudaErrorInvalidValue;
  MlpParameters p{};
  p.args = args;
  p.plan = plan;
  const int32_t most = CeilDivide(static_cast<int32_t>(NumRowTiles(args.gate_up.n)), plan.blocks);
  const struct {
    const MatmulArgs& matmul;
    int32_t tiles;
    CUtensorMap* map;
  } weights[] = {{args.project, kMlpProjectTiles, &p.project},
                 {args.gate_up, most, &p.most_tiles},
                 {args.gate_up, std::max(most - 1, 1), &p.fewer_tiles},
                 {args.down, kMlpUnitTiles, &p.down}};
  cudaError_t error = cudaSuccess;
  for (const auto& [matmul, tiles, map] : weights) {
    if (error == cudaSuccess) error = MapPacked(matmul.w, matmul.n, matmul.k, kSliceSteps, tiles, map);
  }
  for (const auto& [matmul, map] :
       {std::pair(&args.project, &p.attention), {&args.gate_up, &p.normed}, {&args.down, &p.gated}}) {
    if (error == cudaSuccess) error = MapRows(matmul->x, m, matmul->k, plan.tokens, map);
  }
  if (error != cudaSuccess) return error;
  const auto kernel = plan.tokens == 8 ? MlpKernel<8> : plan.tokens == 32 ? MlpKernel<32> : MlpKernel<64>;
  return LaunchDependent(kernel, static_cast<unsigned>(plan.blocks), kThreads,
                         static_cast<size_t>(plan.shared_bytes), stream, p);
}

}  // namespace ridge::kernels::cuda
