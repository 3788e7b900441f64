// The matmul of many rows: blocks of W's rows x tokens, fed through a ring of shared-memory stages
// (matmul_stage.cuh).
//
// Geometry: a warp has kTilesN x 16 rows of W and kTilesM x 8 tokens; W is the A operand, one 16-byte load a
// fragment, tokens come by ldmatrix. At each end of a chunk a warp's sums are added to totals in registers.
// With split_chunks every block takes one chunk and writes its sums; the last block of a tile to end adds
// them all. Grid: token blocks first (the W tile stays in L2), then row blocks, then chunks. Shared memory:
// kStages x 128 bytes x (rows + tokens). Bytes: 2 n k + 2 m k at best. FLOPs: 2 m n k. Reference:
// reference::Matmul, within rounding.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/matmul_stage.cuh"

namespace ridge::kernels::cuda {
namespace {

template <int kWarpsN_, int kWarpsM_, int kTilesN_, int kTilesM_, int kStages_>
struct Shape {
  static constexpr int kWarpsN = kWarpsN_, kWarpsM = kWarpsM_, kTilesN = kTilesN_, kTilesM = kTilesM_,
                       kStages = kStages_;
  static constexpr int kThreads = kWarpsN * kWarpsM * kWarpThreads;
  static constexpr int kRowTiles = kWarpsN * kTilesN;
  static constexpr int kTokens = kWarpsM * kTilesM * 8;
  static constexpr int kFragments = kTilesN * kTilesM;
  static constexpr int kWeightBytes = kRowTiles * kStageTileBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kTokenBytes;
};

using Tokens32 = Shape<4, 1, 1, 4, 6>;
using Tokens64 = Shape<4, 1, 1, 8, 4>;
using Tokens128 = Shape<2, 4, 4, 4, 3>;

// What a warp multiplies in one k step.
template <typename S>
struct StepFragments {
  FragmentA a[S::kTilesN];
  FragmentB b[S::kTilesM];

  __device__ void Load(uint32_t stage, int step, int warp_n, int warp_m, int lane) {
#pragma unroll
    for (int n = 0; n < S::kTilesN; ++n) a[n] = LoadStageA(stage, warp_n * S::kTilesN + n, step, lane);
#pragma unroll
    for (int m = 0; m < S::kTilesM; m += 2) {
      // Matrices: tokens 0..7 with k 0..7 and 8..15, then tokens 8..15.
      const int token = (warp_m * S::kTilesM + m) * 8 + lane / 16 * 8 + lane % 8;
      uint32_t x[4];
      LoadMatrices(x, stage + S::kWeightBytes + TokenPlace(token, step * 2 + lane / 8 % 2));
      b[m] = {{x[0], x[1]}};
      b[m + 1] = {{x[2], x[3]}};
    }
  }
};

// The stage's part of a warp's sums: fragment n * kTilesM + m is that of row tile n and tokens 8 m ... The
// fragments of the next step are on their way while a step is multiplied; steps beyond the last are loaded
// and left alone.
template <typename S>
__device__ void MultiplyStage(FragmentC (&c)[S::kFragments], uint32_t stage, int steps, int warp_n,
                              int warp_m, int lane) {
  StepFragments<S> fragments[2];
  fragments[0].Load(stage, 0, warp_n, warp_m, lane);
#pragma unroll
  for (int step = 0; step < kStageSteps; ++step) {
    if (step >= steps) break;
    if (step + 1 < kStageSteps) fragments[(step + 1) % 2].Load(stage, step + 1, warp_n, warp_m, lane);
    const StepFragments<S>& now = fragments[step % 2];
#pragma unroll
    for (int m = 0; m < S::kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < S::kTilesN; ++n) Mma(c[n * S::kTilesM + m], now.a[n], now.b[m]);
    }
  }
}

template <typename S, bool kSplit>
__global__ void __launch_bounds__(S::kThreads, 1) MatmulTiledKernel(const MatmulArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const int warp_n = warp % S::kWarpsN, warp_m = warp / S::kWarpsN;
  const BlockWork work = WorkOf<kSplit>(args, S::kRowTiles, S::kTokens);
  [[maybe_unused]] const int chunk_depth = static_cast<int>(DotChunk(args.k)) / kTileDepth;
  const uint32_t ring = SharedAddress(shared);
  const int stages = (work.depth_end - work.depth_begin + kStageSteps - 1) / kStageSteps;
  const StageCopier<S::kRowTiles, S::kTokens, S::kThreads> copier(args, work);
  const auto copy_weights = [&](int stage) {
    if (stage < stages) copier.CopyWeights(stage, ring + stage % S::kStages * S::kStageBytes);
  };
  const auto copy_tokens = [&](int stage) {
    if (stage < stages) copier.CopyTokens(stage, ring + stage % S::kStages * S::kStageBytes);
    CommitCopies();
  };
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) copy_weights(stage);
  LaunchNextKernel();
  WaitForPriorKernel();
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) copy_tokens(stage);

  FragmentC c[S::kFragments] = {};
  FragmentC total[S::kFragments];
#pragma unroll
  for (FragmentC& fragment : total) fragment = {{kNoTotal, kNoTotal, kNoTotal, kNoTotal}};
  for (int stage = 0; stage < stages; ++stage) {
    WaitForCopies<S::kStages - 2>();
    __syncthreads();
    copy_weights(stage + S::kStages - 1);
    copy_tokens(stage + S::kStages - 1);
    const int step = work.depth_begin + stage * kStageSteps;
    MultiplyStage<S>(c, ring + stage % S::kStages * S::kStageBytes, work.depth_end - step, warp_n, warp_m,
                     lane);
    if constexpr (!kSplit) {
      if ((step + kStageSteps) % chunk_depth != 0 && stage + 1 < stages) continue;
#pragma unroll
      for (int f = 0; f < S::kFragments; ++f) AddChunk(total[f], c[f]);
    }
  }
  const auto row_of = [&](int f, int thread) {
    return (work.row_tile + thread / kWarpThreads % S::kWarpsN * S::kTilesN + f / S::kTilesM) * kTileRows +
           thread % kWarpThreads / 4;
  };
  const auto token_of = [&](int f, int thread) {
    return work.token + (thread / kWarpThreads / S::kWarpsN * S::kTilesM + f % S::kTilesM) * 8 +
           thread % 4 * 2;
  };
  if constexpr (kSplit) {
    FoldAndWrite<S::kTilesM, S::kFragments, S::kThreads>(args, shared, c, row_of, token_of);
  } else {
    WriteFragments<S::kTilesM>(
        args, total, [&](int f) { return row_of(f, threadIdx.x); },
        [&](int f) { return token_of(f, threadIdx.x); });
  }
}

template <typename S>
cudaError_t Prepare() {
  cudaError_t error = cudaFuncSetAttribute(
      MatmulTiledKernel<S, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kStages * S::kStageBytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(MatmulTiledKernel<S, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              S::kStages * S::kStageBytes);
}

template <typename S>
cudaError_t LaunchShape(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const dim3 grid(
      static_cast<unsigned>((args.m + S::kTokens - 1) / S::kTokens),
      static_cast<unsigned>((NumRowTiles(args.n) + S::kRowTiles - 1) / S::kRowTiles),
      static_cast<unsigned>(plan.split_chunks ? (args.k + DotChunk(args.k) - 1) / DotChunk(args.k) : 1));
  return LaunchDependentCluster(plan.split_chunks ? MatmulTiledKernel<S, true> : MatmulTiledKernel<S, false>,
                                grid, plan.cluster, S::kThreads, S::kStages * S::kStageBytes, stream, args);
}

}  // namespace

cudaError_t PrepareMatmulTiled() {
  cudaError_t error = Prepare<Tokens32>();
  if (error == cudaSuccess) error = Prepare<Tokens64>();
  if (error == cudaSuccess) error = Prepare<Tokens128>();
  return error;
}

cudaError_t LaunchMatmulTiled(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  if (args.m < 1 || args.k % kTileDepth != 0 || args.norm_x != nullptr || args.unmerged.items != nullptr ||
      args.output == MatmulOutput::kArgMax || args.output == MatmulOutput::kPartials)
    return cudaErrorInvalidValue;
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
