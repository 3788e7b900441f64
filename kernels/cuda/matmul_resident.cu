// The matmul of 17 to 32 rows where W has many: all of x stays in a multiprocessor's shared memory, so that
// it comes from L2 once a multiprocessor and not once a tile of W.
//
// Geometry: a block a multiprocessor, up to 12 warps; a warp takes a tile of 16 rows of W over all of K, then
// the next one. Weights are the A operand and go from memory to registers, 16 loads of 16 bytes a lane in
// flight (8 KiB a warp), the first of them before the kernel waits; tokens are the n8 operand. x comes chunk
// by chunk, while the chunks before it are multiplied. At the end of a chunk its sums are added to totals in
// registers. Shared memory: 32 x (k + 8) halves. Bytes: 2 n k, once, and x once a block from L2. FLOPs: 2 m n
// k on m padded to 32. Reference: reference::Matmul, within rounding.
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_few_rows.cuh"
#include "kernels/cuda/matmul_stage.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

constexpr int kBlockSteps = 16;  // of a chunk: K is at most 2,048
constexpr int kChunkColumns = kBlockSteps * kTileDepth;
constexpr int kMaxChunks = 8;
constexpr int kTokens = 32, kTokenTiles = kTokens / 8;

// Until at most `pending` of this thread's groups of copies are in flight.
__device__ void WaitForChunks(int pending) {
  switch (pending) {
    case 0:
      return WaitForCopies<0>();
    case 1:
      return WaitForCopies<1>();
    case 2:
      return WaitForCopies<2>();
    case 3:
      return WaitForCopies<3>();
    case 4:
      return WaitForCopies<4>();
    case 5:
      return WaitForCopies<5>();
    case 6:
      return WaitForCopies<6>();
    default:
      return WaitForCopies<7>();
  }
}

// A chunk's columns of all rows to x [kTokens][k + kRowPad]; zeros beyond the last row. One group of copies.
__device__ void CopyChunk(const MatmulArgs& args, int chunk, uint32_t x) {
  const int begin = chunk * kChunkColumns, pieces = min(kChunkColumns, args.k - begin) / 8;
  for (int i = threadIdx.x; i < kTokens * (kChunkColumns / 8); i += blockDim.x) {
    const int row = i / (kChunkColumns / 8), piece = i % (kChunkColumns / 8);
    if (piece >= pieces) continue;
    CopyAsync16(x + (row * (args.k + kRowPad) + begin + piece * 8) * 2,
                args.x + static_cast<int64_t>(row) * args.k + begin + piece * 8, row < args.m);
  }
  CommitCopies();
}

// c += a chunk's products; each step's weights are replaced by what `next` points to.
template <bool kWhole>
__device__ void MultiplyChunk(FragmentC (&c)[kTokenTiles], uint4 (&weights)[kBlockSteps], int steps,
                              uint32_t x, int row_bytes, const uint4* next, int next_steps) {
#pragma unroll
  for (int i = 0; i < kBlockSteps; i += 2) {
    if (kWhole || i < steps) {
      uint32_t b[kTokenTiles][4];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) LoadMatrices(b[t], x + t * 8 * row_bytes + i * kTileDepth * 2);
#pragma unroll
      for (int j = i; j < i + 2; ++j) {
        if (!kWhole && j >= steps) continue;
        const FragmentA a = {{weights[j].x, weights[j].y, weights[j].z, weights[j].w}};
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) Mma(c[t], a, {{b[t][j % 2 * 2], b[t][j % 2 * 2 + 1]}});
      }
    }
#pragma unroll
    for (int j = i; j < i + 2; ++j) LoadStreamingIf(weights[j], next + j * kWarpThreads, j < next_steps);
  }
}

__global__ void __launch_bounds__(kResidentWarps* kWarpThreads, 1)
    MatmulResidentKernel(const MatmulArgs args) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ unsigned long long best[kTokens];  // kArgMax's, of this block
  const int warps = blockDim.x / kWarpThreads, warp = threadIdx.x / kWarpThreads,
            lane = threadIdx.x % kWarpThreads;
  const int num_tiles = static_cast<int>(NumRowTiles(args.n)), stride_tiles = gridDim.x * warps;
  const int depth = args.k / kTileDepth, chunks = (depth + kBlockSteps - 1) / kBlockSteps;
  int tile = blockIdx.x * warps + warp;
  const auto chunk_weights = [&](int of_tile, int chunk) {
    return reinterpret_cast<const uint4*>(args.w) +
           (int64_t{of_tile} * depth + chunk * kBlockSteps) * kWarpThreads + lane;
  };
  const auto chunk_steps = [&](int of_tile, int chunk) {
    return of_tile < num_tiles ? min(kBlockSteps, depth - chunk * kBlockSteps) : 0;
  };
  uint4 weights[kBlockSteps];
#pragma unroll
  for (int i = 0; i < kBlockSteps; ++i) {
    weights[i] = {};
    LoadStreamingIf(weights[i], chunk_weights(tile, 0) + i * kWarpThreads, i < chunk_steps(tile, 0));
  }
  if (threadIdx.x < kTokens) best[threadIdx.x] = kNoCandidate;
  LaunchNextKernel();
  WaitForPriorKernel();
  const uint32_t x = SharedAddress(shared);
  for (int chunk = 0; chunk < chunks; ++chunk) CopyChunk(args, chunk, x);

  // A lane's row of an ldmatrix: 8 tokens, 16 bytes of each of two steps.
  const int row_bytes = (args.k + kRowPad) * 2;
  const uint32_t place = x + lane % 8 * row_bytes + lane / 8 * 16;
  for (bool first_round = true; tile - warp < num_tiles; first_round = false, tile += stride_tiles) {
    FragmentC c[kTokenTiles] = {};
    FragmentC total[kTokenTiles];
#pragma unroll
    for (FragmentC& fragment : total) fragment = {{kNoTotal, kNoTotal, kNoTotal, kNoTotal}};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (first_round) {
        WaitForChunks(chunks - 1 - chunk);
        __syncthreads();
      }
      const bool last = chunk + 1 == chunks;
      const int next_tile = last ? tile + stride_tiles : tile, next_chunk = last ? 0 : chunk + 1;
      const uint4* next = chunk_weights(next_tile, next_chunk);
      const int next_steps = chunk_steps(next_tile, next_chunk), steps = chunk_steps(tile, chunk);
      const uint32_t slice = place + chunk * kChunkColumns * 2;
      if (steps == kBlockSteps) {
        MultiplyChunk<true>(c, weights, steps, slice, row_bytes, next, next_steps);
      } else {
        MultiplyChunk<false>(c, weights, steps, slice, row_bytes, next, next_steps);
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) AddChunk(total[t], c[t]);
    }
    const int row = tile * kTileRows + lane / 4;
    if (args.output == MatmulOutput::kArgMax) {
      TakeBest(total, row, args.n, lane, best);
    } else {
      WriteFragments<kTokenTiles>(
          args, total, [&](int) { return row; }, [&](int f) { return f * 8 + lane % 4 * 2; });
    }
  }
  if (args.output != MatmulOutput::kArgMax) return;
  __syncthreads();
  if (threadIdx.x < args.m)
    atomicMax(reinterpret_cast<unsigned long long*>(args.best) + threadIdx.x, best[threadIdx.x]);
}

}  // namespace

int32_t MatmulResidentSharedBytes(int32_t k) {
  return kTokens * (k + kRowPad) * 2 + kBeyondRows + kTokens * 8;
}

cudaError_t PrepareMatmulResident() {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(MatmulResidentKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared - kTokens * 8);
}

cudaError_t LaunchMatmulResident(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const int warps = plan.row_tile / kTileRows;
  if (args.m < 1 || args.m > kTokens || warps > kResidentWarps || args.k % kTileDepth != 0 ||
      DotChunk(args.k) != kChunkColumns || args.k > kMaxChunks * kChunkColumns || args.norm_x != nullptr ||
      args.unmerged.items != nullptr || args.output == MatmulOutput::kPartials)
    return cudaErrorInvalidValue;
  return LaunchDependent(MatmulResidentKernel, static_cast<unsigned>(plan.blocks), warps * kWarpThreads,
                         static_cast<size_t>(kTokens * (args.k + kRowPad) * 2 + kBeyondRows), stream, args);
}

}  // namespace ridge::kernels::cuda
