// The matmul of many rows: blocks of W's rows x tokens, fed through a ring of shared-memory stages.
//
// Geometry: a stage holds 64 columns of both operands. W's tiles lie there as they are packed: a lane's fragment is one
// 16-byte load. Tokens are rows of 128 bytes whose 16-byte parts are swizzled by row % 8, read by ldmatrix. A warp has
// kTilesN x 16 rows of W and kTilesM x 8 tokens; at each end of a chunk its sums are added to totals in registers.
// With split_chunks every block takes one chunk and writes its sums; the last block of a tile to end adds them all.
// Grid: token blocks first (the W tile stays in L2), then row blocks, then chunks.
// Shared memory: kStages x 128 bytes x (rows + tokens). Bytes: 2 n k + 2 m k at best. FLOPs: 2 m n k.
// Reference: reference::Matmul, within rounding.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

constexpr int kStageDepth = 64;                            // columns
constexpr int kStageSteps = kStageDepth / kTileDepth;      // k steps
constexpr int kStageTileBytes = kStageSteps * kTileSize * 2;  // of one row tile
constexpr int kTokenBytes = kStageDepth * 2;

template <int kWarpsN_, int kWarpsM_, int kTilesN_, int kTilesM_, int kStages_>
struct Shape {
  static constexpr int kWarpsN = kWarpsN_, kWarpsM = kWarpsM_, kTilesN = kTilesN_, kTilesM = kTilesM_, kStages = kStages_;
  static constexpr int kThreads = kWarpsN * kWarpsM * kWarpThreads;
  static constexpr int kRowTiles = kWarpsN * kTilesN;
  static constexpr int kTokens = kWarpsM * kTilesM * 8;
  static constexpr int kWeightBytes = kRowTiles * kStageTileBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kTokenBytes;
};

using Tokens32 = Shape<4, 1, 1, 4, 4>;
using Tokens64 = Shape<4, 1, 1, 8, 4>;
using Tokens128 = Shape<2, 4, 4, 4, 3>;

// What a block computes.
struct BlockWork {
  int row_tile;   // first
  int num_tiles;  // row tiles of W
  int token;      // first
  int depth_begin, depth_end;  // k steps
};

// Starts the copies of the stage that begins at k step `step`.
template <typename S>
__device__ void CopyStage(const MatmulArgs& args, const BlockWork& work, int step, uint32_t stage) {
  const int depth = args.k / kTileDepth;
  const uint4* w = reinterpret_cast<const uint4*>(args.w);
#pragma unroll
  for (int i = threadIdx.x; i < S::kWeightBytes / 16; i += S::kThreads) {
    const int tile = work.row_tile + i / (kStageSteps * kWarpThreads);
    const int in_tile = i % (kStageSteps * kWarpThreads);
    const bool valid = tile < work.num_tiles && step + in_tile / kWarpThreads < work.depth_end;
    const int64_t from = (int64_t{tile} * depth + step) * kWarpThreads + in_tile;
    CopyAsync16(stage + i * 16, valid ? w + from : w, valid);
  }
#pragma unroll
  for (int i = threadIdx.x; i < S::kTokens * (kTokenBytes / 16); i += S::kThreads) {
    const int token = i / 8, part = i % 8;
    const bool valid = work.token + token < args.m && step + part / 2 < work.depth_end;
    const Half* from = args.x + static_cast<int64_t>(work.token + token) * args.k + step * kTileDepth + part * 8;
    CopyAsync16(stage + S::kWeightBytes + token * kTokenBytes + (part ^ (token % 8)) * 16, valid ? from : args.x, valid);
  }
}

// A warp's sums of one chunk so far, and the stage's part of them.
template <typename S>
__device__ void MultiplyStage(FragmentC (&c)[S::kTilesN][S::kTilesM], uint32_t stage, int steps, int warp_n, int warp_m,
                              int lane) {
#pragma unroll
  for (int step = 0; step < kStageSteps; ++step) {
    if (step >= steps) break;
    FragmentA a[S::kTilesN];
#pragma unroll
    for (int n = 0; n < S::kTilesN; ++n) {
      const uint32_t address =
          stage + (warp_n * S::kTilesN + n) * kStageTileBytes + step * kTileSize * 2 + lane * 16;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a[n].x[0]), "=r"(a[n].x[1]), "=r"(a[n].x[2]), "=r"(a[n].x[3])
                   : "r"(address));
    }
#pragma unroll
    for (int m = 0; m < S::kTilesM; m += 2) {
      // Matrices: tokens 0..7 with k 0..7 and 8..15, then tokens 8..15.
      const int token = warp_m * S::kTilesM * 8 + m * 8 + lane / 16 * 8 + lane % 8;
      const int part = step * 2 + lane / 8 % 2;
      uint32_t b[4];
      LoadMatrices(b, stage + S::kWeightBytes + token * kTokenBytes + (part ^ (token % 8)) * 16);
#pragma unroll
      for (int n = 0; n < S::kTilesN; ++n) {
        Mma(c[n][m], a[n], {{b[0], b[1]}});
        Mma(c[n][m + 1], a[n], {{b[2], b[3]}});
      }
    }
  }
}

// Leaves this chunk's sums where the last block of the tile finds them; true in that block, with the totals in c.
template <typename S>
__device__ bool FoldChunks(const MatmulArgs& args, FragmentC (&c)[S::kTilesN][S::kTilesM]) {
  constexpr int kFragments = S::kTilesN * S::kTilesM;
  const int chunks = gridDim.z, tile = blockIdx.y * gridDim.x + blockIdx.x;
  float4* partials = reinterpret_cast<float4*>(args.workspace) + static_cast<int64_t>(tile) * chunks * kFragments * S::kThreads;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    const FragmentC& sum = c[f / S::kTilesM][f % S::kTilesM];
    __stcg(partials + (static_cast<int64_t>(blockIdx.z) * kFragments + f) * S::kThreads + threadIdx.x,
           make_float4(sum.x[0], sum.x[1], sum.x[2], sum.x[3]));
  }
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(args.counters + tile, 1) == chunks - 1;
    if (last) args.counters[tile] = 0;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    FragmentC& sum = c[f / S::kTilesM][f % S::kTilesM];
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float4 part = __ldcg(partials + (static_cast<int64_t>(chunk) * kFragments + f) * S::kThreads + threadIdx.x);
      const float parts[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.x[i] = chunk == 0 ? parts[i] : __fadd_rn(sum.x[i], parts[i]);
    }
  }
  return true;
}

template <typename S, bool kSplit>
__global__ void __launch_bounds__(S::kThreads) MatmulTiledKernel(const MatmulArgs args) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const int warp_n = warp % S::kWarpsN, warp_m = warp / S::kWarpsN;
  const int depth = args.k / kTileDepth;
  const int chunk_depth = static_cast<int>(DotChunk(args.k)) / kTileDepth;
  BlockWork work;
  work.row_tile = blockIdx.y * S::kRowTiles;
  work.num_tiles = static_cast<int>(NumRowTiles(args.n));
  work.token = blockIdx.x * S::kTokens;
  work.depth_begin = kSplit ? blockIdx.z * chunk_depth : 0;
  work.depth_end = kSplit ? min(work.depth_begin + chunk_depth, depth) : depth;

  const uint32_t ring = SharedAddress(shared);
  const int stages = (work.depth_end - work.depth_begin + kStageSteps - 1) / kStageSteps;
  LaunchNextKernel();
  WaitForPriorKernel();
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) {
    if (stage < stages) CopyStage<S>(args, work, work.depth_begin + stage * kStageSteps, ring + stage * S::kStageBytes);
    CommitCopies();
  }

  FragmentC c[S::kTilesN][S::kTilesM] = {};
  FragmentC total[S::kTilesN][S::kTilesM];
#pragma unroll
  for (int f = 0; f < S::kTilesN * S::kTilesM; ++f) {
    // Minus zero: what is added to it stays as it is.
    for (float& x : total[f / S::kTilesM][f % S::kTilesM].x) x = -0.0f;
  }
  for (int stage = 0; stage < stages; ++stage) {
    WaitForCopies<S::kStages - 2>();
    __syncthreads();
    const int next = stage + S::kStages - 1;
    if (next < stages) {
      CopyStage<S>(args, work, work.depth_begin + next * kStageSteps, ring + next % S::kStages * S::kStageBytes);
    }
    CommitCopies();
    const int step = work.depth_begin + stage * kStageSteps;
    MultiplyStage<S>(c, ring + stage % S::kStages * S::kStageBytes, work.depth_end - step, warp_n, warp_m, lane);
    if constexpr (!kSplit) {
      if ((step + kStageSteps) % chunk_depth != 0 && stage + 1 < stages) continue;
#pragma unroll
      for (int f = 0; f < S::kTilesN * S::kTilesM; ++f) {
        FragmentC& sum = c[f / S::kTilesM][f % S::kTilesM];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& to = total[f / S::kTilesM][f % S::kTilesM].x[i];
          to = __fadd_rn(to, sum.x[i]);
          sum.x[i] = 0.0f;
        }
      }
    }
  }
  if constexpr (kSplit) {
    if (!FoldChunks<S>(args, c)) return;
  }
#pragma unroll
  for (int f = 0; f < S::kTilesN * S::kTilesM; ++f) {
    const int n = f / S::kTilesM, m = f % S::kTilesM;
    const FragmentC& sum = kSplit ? c[n][m] : total[n][m];
    const int row = (work.row_tile + warp_n * S::kTilesN + n) * kTileRows + lane / 4;
    const int token = work.token + (warp_m * S::kTilesM + m) * 8 + lane % 4 * 2;
    WriteSums(args, token, row, sum.x[0], sum.x[2]);
    WriteSums(args, token + 1, row, sum.x[1], sum.x[3]);
  }
}

template <typename S>
cudaError_t Prepare() {
  cudaError_t error = cudaFuncSetAttribute(MatmulTiledKernel<S, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           S::kStages * S::kStageBytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(MatmulTiledKernel<S, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              S::kStages * S::kStageBytes);
}

template <typename S>
cudaError_t LaunchShape(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.m + S::kTokens - 1) / S::kTokens),
                  static_cast<unsigned>((NumRowTiles(args.n) + S::kRowTiles - 1) / S::kRowTiles),
                  static_cast<unsigned>(plan.split_chunks ? (args.k + DotChunk(args.k) - 1) / DotChunk(args.k) : 1));
  return LaunchDependent(plan.split_chunks ? MatmulTiledKernel<S, true> : MatmulTiledKernel<S, false>, grid, S::kThreads,
                         S::kStages * S::kStageBytes, stream, args);
}

}  // namespace

cudaError_t PrepareMatmulTiled() {
  cudaError_t error = Prepare<Tokens32>();
  if (error == cudaSuccess) error = Prepare<Tokens64>();
  if (error == cudaSuccess) error = Prepare<Tokens128>();
  return error;
}

cudaError_t LaunchMatmulTiled(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  if (args.m < 1 || args.k % kTileDepth != 0 || args.norm_x != nullptr) return cudaErrorInvalidValue;
  switch (plan.token_tile) {
    case Tokens32::kTokens:
      return LaunchShape<Tokens32>(plan, args, stream);
    case Tokens64::kTokens:
      return LaunchShape<Tokens64>(plan, args, stream);
    case Tokens128::kTokens:
      return LaunchShape<Tokens128>(plan, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ridge::kernels::cuda
