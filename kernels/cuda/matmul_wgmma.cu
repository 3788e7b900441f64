// The matmul of many rows by the warpgroup instructions of sm_90a: the same bits as the other kernels, at
// twice their rate.
//
// Geometry: 256 threads, two warpgroups; a block has 128 rows of W and 128 tokens, a warpgroup 64 of the rows
// and all tokens. W is the A operand from registers, as it is packed; tokens are the B operand in shared
// memory. Two stages of the ring (128 columns) are multiplied between barriers. Chunks, splits and the grid
// are those of matmul_tiled.cu. Shared memory: 192 KiB. Bytes, FLOPs, reference: as matmul_tiled.cu.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/matmul_stage.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowTiles = 8;
constexpr int kTokens = 128;
// Unused where there is no wgmma.
[[maybe_unused]] constexpr int kFragments = kTokens / 8;
constexpr int kPairs = 3;  // of stages in the ring
constexpr int kStageBytes = kRowTiles * kStageTileBytes + kTokens * kTokenBytes;
constexpr int kSharedBytes = kPairs * 2 * kStageBytes;

template <bool kSplit>
__global__ void __launch_bounds__(kThreads, 1) MatmulWgmmaKernel(const MatmulArgs args) {
#if RIDGE_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const BlockWork work = WorkOf<kSplit>(args, kRowTiles, kTokens);
  [[maybe_unused]] const int chunk_depth = static_cast<int>(DotChunk(args.k)) / kTileDepth;
  const uint32_t ring = SharedAddress(shared);
  constexpr int kPairSteps = 2 * kStageSteps;
  const int pairs = (work.depth_end - work.depth_begin + kPairSteps - 1) / kPairSteps;
  const StageCopier<kRowTiles, kTokens, kThreads> copier(args, work);
  const auto copy = [&](int pair) {
#pragma unroll
    for (int half = 0; half < 2 && pair < pairs; ++half) {
      const uint32_t stage = ring + (pair % kPairs * 2 + half) * kStageBytes;
      copier.CopyWeights(2 * pair + half, stage);
      copier.CopyTokens(2 * pair + half, stage);
    }
    CommitCopies();
  };
  LaunchNextKernel();
  WaitForPriorKernel();
#pragma unroll
  for (int pair = 0; pair < kPairs - 1; ++pair) copy(pair);

  float c[kFragments * 4] = {};
  FragmentC total[kFragments];
#pragma unroll
  for (FragmentC& fragment : total) fragment = {{kNoTotal, kNoTotal, kNoTotal, kNoTotal}};
  for (int pair = 0; pair < pairs; ++pair) {
    WaitForCopies<kPairs - 2>();
    FenceSharedForWgmma();
    __syncthreads();
    const int first = work.depth_begin + pair * kPairSteps;
    const uint32_t stage = ring + pair % kPairs * 2 * kStageBytes;
    FragmentA a[kPairSteps];
#pragma unroll
    for (int i = 0; i < kPairSteps; ++i)
      a[i] = LoadStageA(stage + i / kStageSteps * kStageBytes, warp, i % kStageSteps, lane);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < kPairSteps; ++i) {
      if (first + i >= work.depth_end) break;
      const uint32_t tokens = stage + i / kStageSteps * kStageBytes + kRowTiles * kStageTileBytes;
      Wgmma(c, a[i], SwizzledOperand(tokens + i % kStageSteps * kTileDepth * 2));
    }
    WgmmaCommit();
    copy(pair + kPairs -
         1);  // while the products are formed; all threads are done with the room since the barrier
    WgmmaWait<0>();
    if constexpr (!kSplit) {
      if ((first + kPairSteps) % chunk_depth != 0 && pair + 1 < pairs) continue;
#pragma unroll
      for (int i = 0; i < kFragments * 4; ++i) {
        total[i / 4].x[i % 4] = __fadd_rn(total[i / 4].x[i % 4], c[i]);
        c[i] = 0.0f;
      }
    }
  }
  const auto row_of = [&](int, int thread) {
    return (work.row_tile + thread / kWarpThreads) * kTileRows + thread % kWarpThreads / 4;
  };
  const auto token_of = [&](int f, int thread) { return work.token + f * 8 + thread % 4 * 2; };
  if constexpr (kSplit) {
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i) total[i / 4].x[i % 4] = c[i];
    FoldAndWrite<kFragments, kFragments, kThreads>(args, shared, total, row_of, token_of);
  } else {
    WriteFragments<kFragments>(
        args, total, [&](int f) { return row_of(f, threadIdx.x); },
        [&](int f) { return token_of(f, threadIdx.x); });
  }
#endif
}

}  // namespace

bool HasWgmma() {
  static const bool has = [] {
    DeviceInfo info;
    cudaFuncAttributes attributes{};
    return GetDeviceInfo(&info) == cudaSuccess && info.capability == 90 &&
           cudaFuncGetAttributes(&attributes, MatmulWgmmaKernel<false>) == cudaSuccess &&
           attributes.ptxVersion == 90;
  }();
  return has;
}

cudaError_t PrepareMatmulWgmma() {
  if (!HasWgmma()) return cudaSuccess;
  cudaError_t error = cudaFuncSetAttribute(MatmulWgmmaKernel<false>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(MatmulWgmmaKernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kSharedBytes);
}

cudaError_t LaunchMatmulWgmma(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  if (args.m < 1 || args.k % kTileDepth != 0 || args.norm_x != nullptr ||
      args.output == MatmulOutput::kArgMax || !HasWgmma())
    return cudaErrorInvalidValue;
  const dim3 grid(
      static_cast<unsigned>((args.m + kTokens - 1) / kTokens),
      static_cast<unsigned>((NumRowTiles(args.n) + kRowTiles - 1) / kRowTiles),
      static_cast<unsigned>(plan.split_chunks ? (args.k + DotChunk(args.k) - 1) / DotChunk(args.k) : 1));
  return LaunchDependentCluster(plan.split_chunks ? MatmulWgmmaKernel<true> : MatmulWgmmaKernel<false>, grid,
                                plan.cluster, kThreads, kSharedBytes, stream, args);
}

}  // namespace ridge::kernels::cuda
