// The matmul of few rows (m <= 16), bound by the weights' way from memory.
//
// Geometry: a warp takes one tile of 16 rows of W and one chunk of K; the warps of a block take all chunks of one or more
// tiles, round after round. Weights are the A operand and go from memory to registers, always 16 loads of 16 bytes a lane in
// flight: 8 KiB a warp, the first of them before the kernel waits for the one before it. Tokens are the n8 operand. Chunk
// sums meet in shared memory.
// x comes from memory in slices of 256 columns a warp, the next one while the last is used, or, with a norm, is made by the
// block from fp32 rows.
// Shared memory: x (one or two slices a warp, or all rows), twice 20 x 8 floats a token tile and warp.
// Bytes: 2 n k, once, and x once a block from L2. FLOPs: 2 m n k. Reference: reference::Matmul, within rounding.
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/rms_norm.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kInFlight = 16;  // k steps
constexpr int kSliceDepth = kInFlight * kTileDepth;
// Rows of x are 16 bytes apart from a multiple of 128, so that the 8 rows of an ldmatrix meet different banks.
constexpr int kRowPad = 8;
constexpr int kSliceStride = kSliceDepth + kRowPad;
// Of a token's 16 sums; 20 puts those of a fragment in different banks.
constexpr int kSumStride = 20;

// Of a warp: two where a chunk is longer than one.
__host__ __device__ int NumSlices(int k) {
  return DotChunk(k) > kSliceDepth ? 2 : 1;
}

struct Layout {
  int x_bytes;
  int sum_bytes;
  int group_bytes;
};

__host__ __device__ Layout LayoutOf(bool norm, int m, int k, int warps, int token_tiles) {
  Layout layout{};
  layout.x_bytes = norm ? m * (k + kRowPad) * 2 : warps * NumSlices(k) * m * kSliceStride * 2;
  layout.sum_bytes = 2 * warps * token_tiles * 8 * kSumStride * 4;
  layout.group_bytes = norm ? m * NormGroups(k) * 4 : 0;
  return layout;
}

// Puts the normed rows into x [m][k + kRowPad], by the whole block.
__device__ void NormRows(const MatmulArgs& args, Half* x, float* sums) {
  const int groups = NormGroups(args.k);
  for (int row = 0; row < args.m; ++row) {
    NormGroupSums(args.norm_x + static_cast<int64_t>(row) * args.k, args.k, threadIdx.x, blockDim.x,
                  sums + row * groups);
  }
  __syncthreads();
  for (int row = 0; row < args.m; ++row) {
    const float scale = NormScale(sums + row * groups, args.k, args.norm_eps);
    const float* from = args.norm_x + static_cast<int64_t>(row) * args.k;
    for (int i = threadIdx.x * 4; i < args.k; i += blockDim.x * 4) {
      const float4 value = *reinterpret_cast<const float4*>(from + i);
      const float4 weight = *reinterpret_cast<const float4*>(args.norm_weight + i);
      __half2 pair[2] = {SaturateToHalf2(NormValue(value.x, scale, weight.x), NormValue(value.y, scale, weight.y),
                                         args.saturations),
                         SaturateToHalf2(NormValue(value.z, scale, weight.z), NormValue(value.w, scale, weight.w),
                                         args.saturations)};
      *reinterpret_cast<uint2*>(x + row * (args.k + kRowPad) + i) = *reinterpret_cast<const uint2*>(pair);
    }
  }
  __syncthreads();
}

// Columns [begin, begin + count) of all rows to a slice [m][kSliceStride], by one warp.
__device__ void CopySlice(const MatmulArgs& args, int begin, int count, uint32_t slice, int lane) {
  if (lane * 8 < count) {
    for (int row = 0; row < args.m; ++row) {
      CopyAsync16(slice + (row * kSliceStride + lane * 8) * 2, args.x + static_cast<int64_t>(row) * args.k + begin + lane * 8);
    }
  }
  CommitCopies();
}

template <int kTokenTiles, bool kNorm>
__global__ void __launch_bounds__(kMaxThreads) MatmulDecodeKernel(const MatmulArgs args, const int chunks) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warps = blockDim.x / kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const Layout layout = LayoutOf(kNorm, args.m, args.k, warps, kTokenTiles);

  // The warp's stream of weights: its chunk of one tile after the other. Slot i of `weights` has the steps i, i + 16, ... of a
  // tile, then those of the next tile.
  const int tiles = warps / chunks;
  const int num_tiles = static_cast<int>(NumRowTiles(args.n));
  const int depth = args.k / kTileDepth;
  const int chunk_depth = static_cast<int>(DotChunk(args.k)) / kTileDepth;
  const int first = warp % chunks * chunk_depth;
  const int steps = min(chunk_depth, depth - first);
  int tile = blockIdx.x * tiles + warp / chunks;
  const int64_t tile_stride = int64_t{static_cast<int>(gridDim.x) * tiles} * depth * kWarpThreads;
  const uint4* w = reinterpret_cast<const uint4*>(args.w) + (int64_t{tile} * depth + first) * kWarpThreads + lane;
  uint4 weights[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    if (i < steps && tile < num_tiles) weights[i] = LoadStreaming(w + i * kWarpThreads);
  }
  LaunchNextKernel();
  WaitForPriorKernel();

  // Where this lane's row of an ldmatrix stands in x; rows beyond m repeat the last one, and their sums go nowhere.
  const int stride = (kNorm ? args.k + kRowPad : kSliceStride) * 2;
  uint32_t rows[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) rows[t] = min(t * 8 + lane % 8, args.m - 1) * stride + lane / 8 * 16;
  uint32_t x = SharedAddress(shared);
  const uint32_t slice_bytes = args.m * kSliceStride * 2;
  // Where a chunk is one slice, it is copied once for all tiles.
  const bool one_slice = kNorm || chunk_depth <= kInFlight;
  if constexpr (kNorm) {
    NormRows(args, reinterpret_cast<Half*>(shared),
             reinterpret_cast<float*>(shared + layout.x_bytes + layout.sum_bytes));
    x += first * kTileDepth * 2;
  } else {
    x += warp * NumSlices(args.k) * slice_bytes;
    if (one_slice) {
      CopySlice(args, first * kTileDepth, steps * kTileDepth, x, lane);
      WaitForCopies<0>();
      __syncwarp();
    }
  }

  // A tile a round; the sums have two places, so that one barrier a round is enough.
  for (int round = 0; blockIdx.x * tiles + round * gridDim.x * tiles < num_tiles; ++round) {
    const bool has_next = tile + static_cast<int>(gridDim.x) * tiles < num_tiles;
    FragmentC c[kTokenTiles] = {};
    if (!one_slice) CopySlice(args, first * kTileDepth, min(steps * kTileDepth, kSliceDepth), x, lane);
    for (int base = 0; base < steps; base += kInFlight) {
      uint32_t slice = x;
      if constexpr (kNorm) slice += base * kTileDepth * 2;
      if (!one_slice) {
        const int next = base + kInFlight;
        CopySlice(args, (first + next) * kTileDepth, min((steps - next) * kTileDepth, kSliceDepth),
                  x + next / kInFlight % 2 * slice_bytes, lane);
        slice += base / kInFlight % 2 * slice_bytes;
        WaitForCopies<1>();
        __syncwarp();
      }
#pragma unroll
      for (int i = 0; i < kInFlight; i += 2) {
        if (base + i >= steps) break;
        uint32_t b[kTokenTiles][4];
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) LoadMatrices(b[t], slice + rows[t] + i * kTileDepth * 2);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (base + i + j >= steps) break;
          const FragmentA a = {{weights[i + j].x, weights[i + j].y, weights[i + j].z, weights[i + j].w}};
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) Mma(c[t], a, {{b[t][2 * j], b[t][2 * j + 1]}});
          if (base + i + j + kInFlight < steps) {
            weights[i + j] = LoadStreaming(w + (base + i + j + kInFlight) * kWarpThreads);
          } else if (has_next) {
            weights[i + j] = LoadStreaming(w + tile_stride + (i + j) * kWarpThreads);
          }
        }
      }
      if (!one_slice) __syncwarp();  // the slice may be overwritten
    }
    w += tile_stride;
    tile += gridDim.x * tiles;

    float* sums = reinterpret_cast<float*>(shared + layout.x_bytes) + round % 2 * (layout.sum_bytes / 8);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      float* sum = sums + ((warp * kTokenTiles + t) * 8 + lane % 4 * 2) * kSumStride + lane / 4;
      sum[0] = c[t].x[0];
      sum[kSumStride] = c[t].x[1];
      sum[8] = c[t].x[2];
      sum[kSumStride + 8] = c[t].x[3];
    }
    __syncthreads();
    // The warps take turns at being the first of those that add.
    const int thread = (warp + round) % warps * kWarpThreads + lane;
    for (int i = thread; i < tiles * args.m * 8; i += blockDim.x) {
      const int row = i % 8, token = i / 8 % args.m, t = i / 8 / args.m;
      const float* sum = sums + (t * chunks * kTokenTiles * 8 + token) * kSumStride + row;
      float low = sum[0], high = sum[8];
      for (int chunk = 1; chunk < chunks; ++chunk) {
        sum += kTokenTiles * 8 * kSumStride;
        low = __fadd_rn(low, sum[0]);
        high = __fadd_rn(high, sum[8]);
      }
      WriteSums(args, token, ((blockIdx.x + round * gridDim.x) * tiles + t) * kTileRows + row, low, high);
    }
  }
}

using Kernel = void (*)(MatmulArgs, int);

Kernel KernelOf(int token_tiles, bool norm) {
  if (norm) return token_tiles == 1 ? MatmulDecodeKernel<1, true> : MatmulDecodeKernel<2, true>;
  return token_tiles == 1 ? MatmulDecodeKernel<1, false> : MatmulDecodeKernel<2, false>;
}

}  // namespace

cudaError_t PrepareMatmulDecode() {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (int token_tiles = 1; token_tiles <= 2 && error == cudaSuccess; ++token_tiles) {
    for (bool norm : {false, true}) {
      error = cudaFuncSetAttribute(KernelOf(token_tiles, norm), cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      if (error != cudaSuccess) return error;
    }
  }
  return error;
}

cudaError_t LaunchMatmulDecode(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const int chunks = static_cast<int>((args.k + DotChunk(args.k) - 1) / DotChunk(args.k));
  const int warps = plan.row_tile / kTileRows * chunks;
  if (args.m < 1 || args.m > plan.token_tile || args.k % kTileDepth != 0 || warps * kWarpThreads > kMaxThreads) {
    return cudaErrorInvalidValue;
  }
  const bool norm = args.norm_x != nullptr;
  const int token_tiles = plan.token_tile / 8;
  const Layout layout = LayoutOf(norm, args.m, args.k, warps, token_tiles);
  return LaunchDependent(KernelOf(token_tiles, norm), static_cast<unsigned>(plan.blocks), warps * kWarpThreads,
                         layout.x_bytes + layout.sum_bytes + layout.group_bytes, stream, args, chunks);
}

}  // namespace ridge::kernels::cuda
