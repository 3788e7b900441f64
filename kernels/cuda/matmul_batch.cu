// The matmul of 5 to 64 rows by the warpgroup instructions of sm_90a, bound by the weights' way from memory:
// they go straight to registers, and all of x that a block needs stays in shared memory.
//
// Geometry: a block has 1 or 3 warpgroups; a warp takes a tile of 16 rows of W as its quarter of the A
// operand, and where the block has fewer tiles than warps, the others multiply zeros. With split chunks a
// block has one chunk of K and four tiles, and either leaves its sums for whoever reads them (kPartials), or
// adds them with the others' (matmul_stage.cuh); otherwise all of K, round after round. Tokens (32 or 64)
// are the B operand; 8 are that of mma.sync, whose warps do not wait for each other (split chunks alone). 8
// steps of 16 columns are multiplied at a time, and then their registers take the weights that come 2 to 4
// times 8 steps later (4 KiB each a warp), the first of which are loaded before the kernel waits. Each warp
// waits by itself for the first 256 columns of x, and then for all others: no barrier holds the warps
// together. Shared memory: 2 bytes a token and column. Bytes: 2 n k, once, and x once a block from L2. FLOPs:
// 2 m n k on m padded to 32 or 64. Reference: reference::Matmul, within rounding.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_batch_output.cuh"
#include "kernels/cuda/matmul_stage.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/wgmma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kWarpgroupThreads = 128;
constexpr int kGroupTiles = 4;  // of a warpgroup
constexpr int kManyGroups = 3;  // of a block that has all of K
constexpr int kPartSteps = 8;   // that are multiplied between loads
constexpr int kSliceColumns = 256;
// More than half of a multiprocessor's.
constexpr int64_t kAloneBytes = 116 << 10;
[[maybe_unused]] constexpr int kSliceParts = kSliceColumns / kTileDepth / kPartSteps;

#if RIDGE_HAS_WGMMA

// What a block multiplies: its columns begin at step `begin`.
struct Depth {
  int begin;
  int steps;
};

// A slice of all tokens to x [column / 64][kTokens][64], each 64 columns of a token swizzled as wgmma wants
// them; zeros beyond the last token, and beyond the last column up to the end of its part. A warp takes a
// token at a time.
template <int kTokens, int kWarps>
__device__ void CopySlice(const MatmulArgs& args, const Depth& depth, int slice, uint32_t x) {
  constexpr int kPieces = kSliceColumns / 8, kStagePieces = kStageDepth / 8;  // of 16 bytes, a token
  static_assert(kPieces == kWarpThreads);
  const int warp = threadIdx.x / kWarpThreads, piece = threadIdx.x % kWarpThreads;
  const int pieces = depth.steps * 2 - slice * kPieces;
  const int room = (pieces + 2 * kPartSteps - 1) / (2 * kPartSteps) * (2 * kPartSteps);
  if (piece >= room) return;
  const Half* from = args.x + static_cast<int64_t>(warp) * args.k + depth.begin * kTileDepth +
                     slice * kSliceColumns + piece * 8;
  const uint32_t to =
      x + (slice * (kSliceColumns / kStageDepth) + piece / kStagePieces) * (kTokens * kTokenBytes);
#pragma unroll
  for (int token = warp, i = 0; i < (kTokens + kWarps - 1) / kWarps; ++i, token += kWarps) {
    if (kTokens % kWarps != 0 && token >= kTokens) break;
    CopyAsync16(to + TokenPlace(token, piece % kStagePieces),
                from + static_cast<int64_t>(i * kWarps) * args.k, token < args.m && piece < pieces);
  }
}

// c += the products of a part's columns, which begin at `x`.
template <int kTokens>
__device__ void MultiplyPart(float (&c)[kTokens / 2], const uint4 (&weights)[kPartSteps], uint32_t x) {
  const uint64_t tokens = SwizzledOperand(x);
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < kPartSteps; ++i) {
    const FragmentA a = {{weights[i].x, weights[i].y, weights[i].z, weights[i].w}};
    // The operand's address counts 16 bytes.
    constexpr int kStageUnits = kTokens * kTokenBytes / 16, kStepUnits = kTileDepth * 2 / 16;
    Wgmma(c, a, tokens + (i / kStageSteps * kStageUnits + i % kStageSteps * kStepUnits));
  }
  WgmmaCommit();
  WgmmaWait<0>();
}

// Where a lane finds the fragments of 8 tokens: those of a stage's first two steps, and of its last two.
struct TokenPlaces {
  uint32_t half[2];

  explicit __device__ TokenPlaces(int lane)
      : half{TokenPlace(lane % 8, lane / 8), TokenPlace(lane % 8, 4 + lane / 8)} {}
};

// The same for 8 tokens by mma.sync. The weights of each step make room at once for those at `from`, as
// LoadPart loads them.
__device__ void MultiplyPart(float (&c)[4], uint4 (&weights)[kPartSteps], uint32_t x,
                             const TokenPlaces& places, const uint4* from, int steps) {
  uint32_t b[kPartSteps / 2][4];
#pragma unroll
  for (int i = 0; i < kPartSteps / 2; ++i)
    LoadMatrices(b[i], x + i * 2 / kStageSteps * (8 * kTokenBytes) + places.half[i % 2]);
  FragmentC sum = {{c[0], c[1], c[2], c[3]}};
#pragma unroll
  for (int i = 0; i < kPartSteps; ++i) {
    const FragmentA a = {{weights[i].x, weights[i].y, weights[i].z, weights[i].w}};
    Mma(sum, a, {{b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]}});
    LoadStreamingIf(weights[i], from + i * kWarpThreads, i < steps);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = sum.x[i];
  if (steps <= 0 || steps >= kPartSteps) return;
#pragma unroll
  for (int i = 0; i < kPartSteps; ++i) {
    if (i >= steps) weights[i] = {};
  }
}

// Zeros behind the first `steps`; without any, what was there stays. No select: it would wait for the loads.
__device__ void LoadPart(uint4 (&weights)[kPartSteps], const uint4* from, int steps) {
  if (steps >= kPartSteps) {
#pragma unroll
    for (int i = 0; i < kPartSteps; ++i) weights[i] = LoadStreaming(from + i * kWarpThreads);
  } else if (steps > 0) {
#pragma unroll
    for (int i = 0; i < kPartSteps; ++i) {
      weights[i] = {};
      LoadStreamingIf(weights[i], from + i * kWarpThreads, i < steps);
    }
  }
}

// Brings what the block's queries, keys and values are rotated by, and where they go, to L1 while the kernel
// would only wait.
__device__ void TouchRopePlaces(const MatmulArgs& args, int row) {
  const RopeKvArgs& rope = args.rope;
  if (static_cast<int>(threadIdx.x) >= args.m || row >= args.n) return;
  const int half = rope.head_dim / 2, position = rope.positions[threadIdx.x];
  const int64_t pair = static_cast<int64_t>(position) * half + row % rope.head_dim / 16 * 8;
  const int slot = max(rope.slots[threadIdx.x], 0);
  const int block =
      rope.block_tables[static_cast<int64_t>(slot) * rope.table_stride + position / kKvBlockTokens];
  asm volatile("" ::"f"(rope.cosines[pair]), "f"(rope.sines[pair]), "r"(block));
}

#endif

template <int kTokens, int kGroups, bool kSplit, int kParts>
__global__ void __launch_bounds__(kGroups* kWarpgroupThreads, 1)
    MatmulBatchKernel([[maybe_unused]] const MatmulArgs args, [[maybe_unused]] const int block_tiles) {
#if RIDGE_HAS_WGMMA
  constexpr int kTokenTiles = kTokens / 8;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ unsigned long long best[kTokens];  // kArgMax's, of this block
  __shared__ uint64_t arrived[2];               // x's first slice, and the rest
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const int whole_depth = args.k / kTileDepth, num_tiles = static_cast<int>(NumRowTiles(args.n));
  const int chunk_depth = static_cast<int>(DotChunk(args.k)) / kTileDepth;
  Depth depth = {0, whole_depth};
  if constexpr (kSplit) {
    depth.begin = blockIdx.z * chunk_depth;
    depth.steps = min(chunk_depth, whole_depth - depth.begin);
  }
  const int stride_tiles = gridDim.y * block_tiles;
  int round_tile = blockIdx.y * block_tiles;
  const int parts = (depth.steps + kPartSteps - 1) / kPartSteps;

  // What is loaded next; num_tiles or more: nothing.
  int ahead_tile = warp < block_tiles ? round_tile + warp : num_tiles, ahead_part = 0;
  const uint4* ahead = reinterpret_cast<const uint4*>(args.w) +
                       (int64_t{ahead_tile} * whole_depth + depth.begin) * kWarpThreads + lane;
  const int64_t to_next_tile =
      (int64_t{stride_tiles} * whole_depth - int64_t{parts} * kPartSteps) * kWarpThreads;
  const auto steps_ahead = [&] { return ahead_tile < num_tiles ? depth.steps - ahead_part * kPartSteps : 0; };
  const auto advance = [&] {
    ahead += kPartSteps * kWarpThreads;
    if (++ahead_part < parts) return;
    ahead_part = 0;
    ahead_tile += stride_tiles;
    ahead += to_next_tile;
  };
  uint4 weights[kParts][kPartSteps] = {};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    LoadPart(weights[i], ahead, steps_ahead());
    advance();
  }
  if (threadIdx.x < kTokens) best[threadIdx.x] = kNoCandidate;
  if (threadIdx.x < 2) InitBarrier(SharedAddress(&arrived[threadIdx.x]), static_cast<int>(blockDim.x));
  __syncthreads();
  LaunchNextKernel();
  if (kSplit && args.output == MatmulOutput::kRopeKv) TouchRopePlaces(args, round_tile * kTileRows);
  WaitForPriorKernel();
  uint32_t x = SharedAddress(shared);
  asm volatile("" : "+r"(x));  // or else it is made anew for every part
  CopySlice<kTokens, kGroups * kGroupTiles>(args, depth, 0, x);
  ArriveWithCopies(SharedAddress(&arrived[0]));
  for (int slice = 1; slice * kSliceParts < parts; ++slice)
    CopySlice<kTokens, kGroups * kGroupTiles>(args, depth, slice, x);
  ArriveWithCopies(SharedAddress(&arrived[1]));

  [[maybe_unused]] const TokenPlaces places(lane);
  int turn = 0;  // of the weights' registers
  for (bool first_round = true; round_tile < num_tiles; first_round = false, round_tile += stride_tiles) {
    float c[kTokenTiles * 4] = {};
    FragmentC total[kTokenTiles];
#pragma unroll
    for (FragmentC& fragment : total) fragment = {{kNoTotal, kNoTotal, kNoTotal, kNoTotal}};
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      if (first_round && (part == 0 || part == kSliceParts)) {
        AwaitBarrier(SharedAddress(&arrived[part / kSliceParts]), 0, part);
        FenceSharedForWgmma();
      }
      const uint32_t columns = x + part * (kPartSteps / kStageSteps) * (kTokens * kTokenBytes);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        if (i != turn) continue;
        if constexpr (kTokens == 8) {
          MultiplyPart(c, weights[i], columns, places, ahead, steps_ahead());
        } else {
          MultiplyPart<kTokens>(c, weights[i], columns);
          LoadPart(weights[i], ahead, steps_ahead());
        }
        advance();
      }
      turn = turn + 1 < kParts ? turn + 1 : 0;
      if constexpr (!kSplit) {
        if (part % kSliceParts + 1 < kSliceParts && part + 1 < parts) continue;
#pragma unroll
        for (int i = 0; i < kTokenTiles * 4; ++i) {
          total[i / 4].x[i % 4] = __fadd_rn(total[i / 4].x[i % 4], c[i]);
          c[i] = 0.0f;
        }
      }
    }
    const auto row_of = [&](int, int thread) {
      const int of_tile = round_tile + thread / kWarpThreads;
      return (thread / kWarpThreads < block_tiles ? of_tile : num_tiles) * kTileRows +
             thread % kWarpThreads / 4;
    };
    const auto token_of = [&](int f, int thread) { return f * 8 + thread % 4 * 2; };
    const int row = row_of(0, threadIdx.x);
    if constexpr (kSplit) {
#pragma unroll
      for (int i = 0; i < kTokenTiles * 4; ++i) total[i / 4].x[i % 4] = c[i];
      if (args.output == MatmulOutput::kPartials) return WritePartials(args, total, blockIdx.z, row, 0, lane);
      FoldAndWrite<kTokenTiles, kTokenTiles, kGroups * kWarpgroupThreads>(args, shared, total, row_of,
                                                                          token_of);
    } else if (args.output == MatmulOutput::kArgMax) {
      TakeBest(total, row, args.n, lane, best);
    } else if (args.output == MatmulOutput::kSwiGlu && args.bias == nullptr) {
      WriteGatedRow(args, total, row, lane);
    } else {
      WriteFragments<kTokenTiles>(
          args, total, [&](int) { return row; }, [&](int f) { return token_of(f, threadIdx.x); });
    }
  }
  if (kSplit || args.output != MatmulOutput::kArgMax) return;
  __syncthreads();
  if (threadIdx.x < args.m)
    atomicMax(reinterpret_cast<unsigned long long*>(args.best) + threadIdx.x, best[threadIdx.x]);
#endif
}

using Kernel = void (*)(MatmulArgs, int);

// As many weights in flight as there are registers for them, and as a chunk has.
Kernel KernelOf(int tokens, bool split, bool long_chunks) {
  if (!split)
    return tokens == 32 ? MatmulBatchKernel<32, kManyGroups, false, 3>
                        : MatmulBatchKernel<64, kManyGroups, false, 2>;
  if (tokens == 8) return long_chunks ? MatmulBatchKernel<8, 1, true, 4> : MatmulBatchKernel<8, 1, true, 2>;
  if (long_chunks)
    return tokens == 32 ? MatmulBatchKernel<32, 1, true, 4> : MatmulBatchKernel<64, 1, true, 4>;
  return tokens == 32 ? MatmulBatchKernel<32, 1, true, 2> : MatmulBatchKernel<64, 1, true, 2>;
}

}  // namespace

int32_t MatmulBatchSharedBytes(const MatmulPlan& plan, int32_t k) {
  const int64_t columns = plan.split_chunks ? std::min<int64_t>(DotChunk(k), k) : k;
  constexpr int64_t kPartColumns = kPartSteps * kTileDepth;
  const int64_t stages = (columns + kPartColumns - 1) / kPartColumns * (kPartColumns / kStageDepth);
  const int64_t fold = int64_t{plan.token_tile} / 8 * kWarpgroupThreads * 16;
  const int64_t least = std::max(plan.split_chunks ? fold : 0, plan.alone ? kAloneBytes : 0);
  return static_cast<int32_t>(
      std::min<int64_t>(std::max(stages * plan.token_tile * kTokenBytes, least), INT32_MAX));
}

cudaError_t PrepareMatmulBatch() {
  if (!HasWgmma()) return cudaSuccess;
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (Kernel kernel : {KernelOf(32, false, false), KernelOf(64, false, false), KernelOf(8, true, false),
                        KernelOf(32, true, false), KernelOf(64, true, false), KernelOf(8, true, true),
                        KernelOf(32, true, true), KernelOf(64, true, true)}) {
    if (error != cudaSuccess) return error;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared - kMatmulBatchStaticBytes);
  }
  return error;
}

cudaError_t LaunchMatmulBatch(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const int tiles = plan.row_tile / kTileRows, groups = plan.split_chunks ? 1 : kManyGroups;
  if (args.m < 1 || args.m > plan.token_tile || args.k % kTileDepth != 0 || tiles > groups * kGroupTiles ||
      (!plan.split_chunks && (DotChunk(args.k) != kSliceColumns || plan.token_tile == 8)) ||
      args.norm_x != nullptr || args.unmerged.items != nullptr ||
      (args.output == MatmulOutput::kArgMax && plan.split_chunks) ||
      (args.output == MatmulOutput::kPartials && !plan.split_chunks) || !HasWgmma())
    return cudaErrorInvalidValue;
  const auto chunks =
      static_cast<unsigned>(plan.split_chunks ? (args.k + DotChunk(args.k) - 1) / DotChunk(args.k) : 1);
  const dim3 grid(1, static_cast<unsigned>(plan.blocks) / chunks, chunks);
  const int cluster = args.output == MatmulOutput::kPartials ? 0 : plan.cluster;
  return LaunchDependentCluster(
      KernelOf(plan.token_tile, plan.split_chunks, DotChunk(args.k) > kSliceColumns), grid, cluster,
      groups * kWarpgroupThreads, static_cast<size_t>(MatmulBatchSharedBytes(plan, args.k)), stream, args,
      tiles);
}

}  // namespace ridge::kernels::cuda
