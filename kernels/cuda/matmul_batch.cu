// The matmul of 17 to 64 rows by the warpgroup instructions of sm_90a, bound by the weights' way from memory:
// they go straight to registers, and all of x that a block needs stays in shared memory.
//
// Geometry: a block has 1 or 3 warpgroups; a warp takes a tile of 16 rows of W as its quarter of the A
// operand, and where the block has fewer tiles than warps, the others multiply zeros. With split chunks a
// block has one chunk of K and four tiles, and either leaves its sums for whoever reads them (kPartials), or
// adds them with the others' (matmul_stage.cuh); otherwise all of K, round after round. Tokens (32 or 64) are
// the B operand. Always 16 loads of 16 bytes a lane are in flight, 8 of which are replaced at a time, the
// first of them before the kernel waits; x comes in slices of 256 columns while those before are multiplied.
// Shared memory: 2 bytes a token and column. Bytes: 2 n k, once, and x once a block from L2. FLOPs: 2 m n k
// on m padded to 32 or 64. Reference: reference::Matmul, within rounding.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_stage.cuh"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/wgmma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kWarpgroupThreads = 128;
constexpr int kGroupTiles = 4;                    // of a warpgroup
constexpr int kManyGroups = 3;                    // of a block that has all of K
[[maybe_unused]] constexpr int kBlockSteps = 16;  // that a warp has in flight
[[maybe_unused]] constexpr int kHalfSteps = 8;    // that are multiplied between loads
constexpr int kSliceColumns = 256;

#if RIDGE_HAS_WGMMA

// What a block multiplies: its columns begin at step `begin`.
struct Depth {
  int begin;
  int steps;
};

// A slice of all tokens to x [column / 64][kTokens][64], each 64 columns of a token swizzled as wgmma wants
// them; zeros beyond the last token. One group of copies.
template <int kTokens>
__device__ void CopySlice(const MatmulArgs& args, const Depth& depth, int slice, uint32_t x) {
  constexpr int kParts = kSliceColumns / 8, kStageParts = kStageDepth / 8;  // of 16 bytes, a token
  const int parts = min(kParts, depth.steps * 2 - slice * kParts);
  const Half* from = args.x + depth.begin * kTileDepth + slice * kSliceColumns;
  for (int i = threadIdx.x; i < kTokens * kParts; i += blockDim.x) {
    const int token = i / kParts, part = i % kParts;
    if (part >= parts) continue;
    CopyAsync16(x + (slice * (kSliceColumns / kStageDepth) + part / kStageParts) * (kTokens * kTokenBytes) +
                    TokenPlace(token, part % kStageParts),
                from + static_cast<int64_t>(token) * args.k + part * 8, token < args.m);
  }
  CommitCopies();
}

// c += the products of the next kHalfSteps steps, or of `steps` where these are fewer. `x`: where their
// columns begin, at a multiple of 64.
template <int kTokens, bool kWhole>
__device__ void MultiplyHalf(float (&c)[kTokens / 2], const uint4 (&weights)[kHalfSteps], uint32_t x,
                             [[maybe_unused]] int steps) {
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < kHalfSteps; ++i) {
    if (!kWhole && i >= steps) break;
    const FragmentA a = {{weights[i].x, weights[i].y, weights[i].z, weights[i].w}};
    Wgmma(c, a,
          SwizzledOperand(x + i / kStageSteps * (kTokens * kTokenBytes) + i % kStageSteps * kTileDepth * 2));
  }
  WgmmaCommit();
  WgmmaWait<0>();
}

__device__ void LoadHalf(uint4 (&weights)[kHalfSteps], const uint4* from, int steps) {
#pragma unroll
  for (int i = 0; i < kHalfSteps; ++i) LoadStreamingIf(weights[i], from + i * kWarpThreads, i < steps);
}

// A warp's sums of one chunk to workspace [chunk][m][n].
template <int kTokenTiles>
__device__ void WritePartials(const MatmulArgs& args, const FragmentC (&sums)[kTokenTiles], int row,
                              int lane) {
  float* to = args.workspace + static_cast<int64_t>(blockIdx.z) * args.m * args.n + row;
#pragma unroll
  for (int f = 0; f < kTokenTiles; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = f * 8 + lane % 4 * 2 + i % 2;
      if (token < args.m && row + i / 2 * 8 < args.n)
        to[static_cast<int64_t>(token) * args.n + i / 2 * 8] = sums[f].x[i];
    }
  }
}

#endif

template <int kTokens, int kGroups, bool kSplit>
__global__ void __launch_bounds__(kGroups* kWarpgroupThreads, 1)
    MatmulBatchKernel([[maybe_unused]] const MatmulArgs args, [[maybe_unused]] const int block_tiles) {
#if RIDGE_HAS_WGMMA
  constexpr int kTokenTiles = kTokens / 8;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ unsigned long long best[kTokens];  // kArgMax's, of this block
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
  int tile = warp < block_tiles ? round_tile + warp : num_tiles;  // num_tiles or more: none
  const auto weights_at = [&](int of_tile, int step) {
    return reinterpret_cast<const uint4*>(args.w) +
           (int64_t{of_tile} * whole_depth + depth.begin + step) * kWarpThreads + lane;
  };
  uint4 weights[2][kHalfSteps] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    LoadHalf(weights[half], weights_at(tile, half * kHalfSteps),
             tile < num_tiles ? depth.steps - half * kHalfSteps : 0);
  }
  if (threadIdx.x < kTokens) best[threadIdx.x] = kNoCandidate;
  LaunchNextKernel();
  WaitForPriorKernel();
  const uint32_t x = SharedAddress(shared);
  const int slices = (depth.steps + kBlockSteps - 1) / kBlockSteps;
  for (int slice = 0; slice < slices; ++slice) CopySlice<kTokens>(args, depth, slice, x);

  for (bool first_round = true; round_tile < num_tiles; first_round = false, round_tile += stride_tiles) {
    float c[kTokenTiles * 4] = {};
    FragmentC total[kTokenTiles];
#pragma unroll
    for (FragmentC& fragment : total) fragment = {{kNoTotal, kNoTotal, kNoTotal, kNoTotal}};
    for (int slice = 0; slice < slices; ++slice) {
      if (first_round) {
        WaitForPending(slices - 1 - slice);
        FenceSharedForWgmma();
        __syncthreads();
      }
      const bool last = slice + 1 == slices;
      const int next_tile = last ? tile + stride_tiles : tile,
                next_step = last ? 0 : (slice + 1) * kBlockSteps;
      const uint4* next = weights_at(next_tile, next_step);
      const int next_steps = next_tile < num_tiles ? depth.steps - next_step : 0;
      const uint32_t columns = x + slice * (kSliceColumns / kStageDepth) * (kTokens * kTokenBytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t half_columns = columns + half * (kHalfSteps / kStageSteps) * (kTokens * kTokenBytes);
        const int steps = depth.steps - slice * kBlockSteps - half * kHalfSteps;
        if (steps >= kHalfSteps) {
          MultiplyHalf<kTokens, true>(c, weights[half], half_columns, steps);
        } else if (steps > 0) {
          MultiplyHalf<kTokens, false>(c, weights[half], half_columns, steps);
        }
        LoadHalf(weights[half], next + half * kHalfSteps * kWarpThreads, next_steps - half * kHalfSteps);
      }
      if constexpr (!kSplit) {
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
      if (args.output == MatmulOutput::kPartials) return WritePartials(args, total, row, lane);
      FoldAndWrite<kTokenTiles, kTokenTiles, kGroups * kWarpgroupThreads>(args, shared, total, row_of,
                                                                          token_of);
    } else if (args.output == MatmulOutput::kArgMax) {
      TakeBest(total, row, args.n, lane, best);
    } else {
      WriteFragments<kTokenTiles>(
          args, total, [&](int) { return row; }, [&](int f) { return token_of(f, threadIdx.x); });
    }
    tile += stride_tiles;
  }
  if (kSplit || args.output != MatmulOutput::kArgMax) return;
  __syncthreads();
  if (threadIdx.x < args.m)
    atomicMax(reinterpret_cast<unsigned long long*>(args.best) + threadIdx.x, best[threadIdx.x]);
#endif
}

using Kernel = void (*)(MatmulArgs, int);

Kernel KernelOf(int tokens, bool split) {
  if (tokens == 32) return split ? MatmulBatchKernel<32, 1, true> : MatmulBatchKernel<32, kManyGroups, false>;
  return split ? MatmulBatchKernel<64, 1, true> : MatmulBatchKernel<64, kManyGroups, false>;
}

}  // namespace

int32_t MatmulBatchSharedBytes(const MatmulPlan& plan, int32_t k) {
  const int64_t columns = plan.split_chunks ? std::min<int64_t>(DotChunk(k), k) : k;
  const int64_t stages = (columns + kStageDepth - 1) / kStageDepth;
  const int64_t fold = int64_t{plan.token_tile} / 8 * kWarpgroupThreads * 16;
  return static_cast<int32_t>(std::min<int64_t>(
      std::max(stages * plan.token_tile * kTokenBytes, plan.split_chunks ? fold : 0), INT32_MAX));
}

cudaError_t PrepareMatmulBatch() {
  if (!HasWgmma()) return cudaSuccess;
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (const int tokens : {32, 64}) {
    for (const bool split : {false, true}) {
      if (error != cudaSuccess) return error;
      error = cudaFuncSetAttribute(KernelOf(tokens, split), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   shared - kMatmulBatchStaticBytes);
    }
  }
  return error;
}

cudaError_t LaunchMatmulBatch(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const int tiles = plan.row_tile / kTileRows, groups = plan.split_chunks ? 1 : kManyGroups;
  if (args.m < 1 || args.m > plan.token_tile || args.k % kTileDepth != 0 || tiles > groups * kGroupTiles ||
      (!plan.split_chunks && DotChunk(args.k) != kSliceColumns) || args.norm_x != nullptr ||
      (args.output == MatmulOutput::kArgMax && plan.split_chunks) ||
      (args.output == MatmulOutput::kPartials && !plan.split_chunks) || !HasWgmma())
    return cudaErrorInvalidValue;
  const auto chunks =
      static_cast<unsigned>(plan.split_chunks ? (args.k + DotChunk(args.k) - 1) / DotChunk(args.k) : 1);
  const dim3 grid(1, static_cast<unsigned>(plan.blocks) / chunks, chunks);
  const int cluster = args.output == MatmulOutput::kPartials ? 0 : plan.cluster;
  return LaunchDependentCluster(
      KernelOf(plan.token_tile, plan.split_chunks), grid, cluster, groups * kWarpgroupThreads,
      static_cast<size_t>(MatmulBatchSharedBytes(plan, args.k)), stream, args, tiles);
}

}  // namespace ridge::kernels::cuda
