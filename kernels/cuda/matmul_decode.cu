// The matmul of few rows (m <= 16), bound by the weights' way from memory.
//
// Geometry: a warp takes one tile of 16 rows of W and one chunk of K; the warps of a block take all chunks of one or more
// tiles, round after round. Weights are the A operand and go from memory to registers, always 16 loads of 16 bytes a lane in
// flight (8 KiB a warp; twice that for long chunks), the first of them before the kernel waits for the one before it. Tokens are the n8 operand. Chunk
// sums meet in shared memory.
// x comes from memory in slices of 256 columns a warp (512), the next one while the last is used, or, with a norm, is made by the
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
// K steps whose weights a warp has in flight: more where a chunk is long, since a warp then has one chain to itself.
constexpr int kShortFlight = 16, kLongFlight = 32;
// Rows of x are 16 bytes apart from a multiple of 128, so that the 8 rows of an ldmatrix meet different banks.
constexpr int kRowPad = 8;
// Of a token's 16 sums; 20 puts those of a fragment in different banks.
constexpr int kSumStride = 20;

// Of a row of x in a slice, in elements.
constexpr int SliceStride(int in_flight) {
  return in_flight * kTileDepth + kRowPad;
}

__host__ __device__ int ChunkSteps(int k) {
  return static_cast<int>(DotChunk(k)) / kTileDepth;
}

struct Layout {
  int x_bytes;
  int sum_bytes;  // of one of two places
  int group_bytes;
};

__host__ __device__ Layout LayoutOf(bool norm, int in_flight, int m, int k, int warps, int token_tiles) {
  Layout layout{};
  const int slices = ChunkSteps(k) > in_flight ? 2 : 1;
  layout.x_bytes = norm ? m * (k + kRowPad) * 2 : warps * slices * m * SliceStride(in_flight) * 2;
  layout.sum_bytes = warps * token_tiles * 8 * kSumStride * 4;
  layout.group_bytes = norm ? m * NormGroups(k) * 4 : 0;
  return layout;
}

// Puts the normed rows into x [m][k + kRowPad]: each half of a warp takes one group of 256 columns of one row.
__device__ void NormRows(const MatmulArgs& args, Half* x, float* sums) {
  const int groups = NormGroups(args.k), pair = threadIdx.x / kVirtualLanes, lane = threadIdx.x % kVirtualLanes;
  const int row = pair / groups, column = pair % groups * kNormGroup + lane;
  const int count = row < args.m ? (min(kNormGroup, args.k - column + lane)) / kVirtualLanes : 0;
  const float* from = args.norm_x + static_cast<int64_t>(row) * args.k + column;
  float values[kNormGroup / kVirtualLanes], weights[kNormGroup / kVirtualLanes];
#pragma unroll
  for (int i = 0; i < kNormGroup / kVirtualLanes; ++i) {
    if (i >= count) continue;
    values[i] = from[i * kVirtualLanes];
    weights[i] = args.norm_weight[column + i * kVirtualLanes];
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormGroup / kVirtualLanes; ++i) {
    if (i < count) sum = __fmaf_rn(values[i], values[i], sum);
  }
#pragma unroll
  for (int width = kVirtualLanes / 2; width >= 1; width /= 2) {
    sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width, kVirtualLanes));
  }
  if (lane == 0 && count > 0) sums[pair] = sum;
  __syncthreads();
  if (count > 0) {
    const float scale = NormScale(sums + row * groups, args.k, args.norm_eps);
    Half* to = x + row * (args.k + kRowPad) + column;
#pragma unroll
    for (int i = 0; i < kNormGroup / kVirtualLanes; ++i) {
      if (i >= count) continue;
      const __half value = SaturateToHalf(NormValue(values[i], scale, weights[i]), args.saturations);
      to[i * kVirtualLanes] = __half_as_ushort(value);
    }
  }
  __syncthreads();
}

// Columns [begin, begin + count) of all rows to a slice [m][kStride], by one warp.
template <int kStride>
__device__ void CopySlice(const MatmulArgs& args, int begin, int count, uint32_t slice, int lane) {
  for (int column = lane * 8; column < count; column += kWarpThreads * 8) {
    for (int row = 0; row < args.m; ++row) {
      CopyAsync16(slice + (row * kStride + column) * 2, args.x + static_cast<int64_t>(row) * args.k + begin + column);
    }
  }
  CommitCopies();
}

// Registers a thread: three blocks of six warps share a multiprocessor, or one with long chunks.
constexpr int MaxRegisters(int in_flight) {
  return in_flight == kShortFlight ? 112 : 224;
}

template <int kTokenTiles, bool kNorm, int kInFlight>
__global__ void __maxnreg__(MaxRegisters(kInFlight)) MatmulDecodeKernel(const MatmulArgs args, const int chunks) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warps = blockDim.x / kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const Layout layout = LayoutOf(kNorm, kInFlight, args.m, args.k, warps, kTokenTiles);

  // The warp's stream of weights: its chunk of one tile after the other. Slot i of `weights` has the steps i, i + 16, ... of a
  // tile, then those of the next tile.
  const int tiles = warps / chunks;
  const int num_tiles = static_cast<int>(NumRowTiles(args.n));
  const int depth = args.k / kTileDepth;
  const int chunk_depth = ChunkSteps(args.k);
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
  constexpr int kStride = SliceStride(kInFlight), kSliceDepth = kInFlight * kTileDepth;
  const int stride = (kNorm ? args.k + kRowPad : kStride) * 2;
  uint32_t rows[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) rows[t] = min(t * 8 + lane % 8, args.m - 1) * stride + lane / 8 * 16;
  uint32_t x = SharedAddress(shared);
  const uint32_t slice_bytes = args.m * kStride * 2;
  // Where a chunk is one slice, it is copied once for all tiles.
  const bool one_slice = kNorm || chunk_depth <= kInFlight;
  if constexpr (kNorm) {
    NormRows(args, reinterpret_cast<Half*>(shared),
             reinterpret_cast<float*>(shared + layout.x_bytes + 2 * layout.sum_bytes));
    x += first * kTileDepth * 2;
  } else {
    x += warp * (one_slice ? 1 : 2) * slice_bytes;
    if (one_slice) {
      CopySlice<kStride>(args, first * kTileDepth, steps * kTileDepth, x, lane);
      WaitForCopies<0>();
      __syncwarp();
    }
  }

  // A tile a round; the sums have two places, so that one barrier a round is enough.
  for (int round = 0; blockIdx.x * tiles + round * gridDim.x * tiles < num_tiles; ++round) {
    const bool has_next = tile + static_cast<int>(gridDim.x) * tiles < num_tiles;
    FragmentC c[kTokenTiles] = {};
    if (!one_slice) CopySlice<kStride>(args, first * kTileDepth, min(steps * kTileDepth, kSliceDepth), x, lane);
    for (int base = 0; base < steps; base += kInFlight) {
      uint32_t slice = x;
      if constexpr (kNorm) slice += base * kTileDepth * 2;
      if (!one_slice) {
        const int next = base + kInFlight;
        CopySlice<kStride>(args, (first + next) * kTileDepth, min((steps - next) * kTileDepth, kSliceDepth),
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

    float* sums = reinterpret_cast<float*>(shared + layout.x_bytes) + round % 2 * (layout.sum_bytes / 4);
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

struct Variant {
  Kernel kernel;
  int in_flight;
};

constexpr Variant kVariants[] = {{MatmulDecodeKernel<1, false, kShortFlight>, kShortFlight},
                                 {MatmulDecodeKernel<2, false, kShortFlight>, kShortFlight},
                                 {MatmulDecodeKernel<1, true, kShortFlight>, kShortFlight},
                                 {MatmulDecodeKernel<1, false, kLongFlight>, kLongFlight}};

const Variant& VariantOf(int token_tiles, bool norm, int k) {
  if (norm) return kVariants[2];
  if (token_tiles == 2) return kVariants[1];  // with more in flight x would not fit into shared memory
  return ChunkSteps(k) > kShortFlight ? kVariants[3] : kVariants[0];
}

int NumWarps(const MatmulPlan& plan, int k) {
  return plan.row_tile / kTileRows * static_cast<int>((k + DotChunk(k) - 1) / DotChunk(k));
}

}  // namespace

bool TakesNorm(const MatmulPlan& plan, int32_t m, int32_t k) {
  return plan.kernel == MatmulKernel::kDecode && plan.token_tile == 8 &&
         m * NormGroups(k) <= NumWarps(plan, k) * kWarpThreads / kVirtualLanes;
}

cudaError_t PrepareMatmulDecode() {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (const Variant& variant : kVariants) {
    if (error != cudaSuccess) break;
    error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  }
  return error;
}

cudaError_t LaunchMatmulDecode(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const int warps = NumWarps(plan, args.k);
  const bool norm = args.norm_x != nullptr;
  if (args.m < 1 || args.m > plan.token_tile || args.k % kTileDepth != 0 || warps * kWarpThreads > kMaxThreads ||
      (norm && !TakesNorm(plan, args.m, args.k))) {
    return cudaErrorInvalidValue;
  }
  const int token_tiles = plan.token_tile / 8, chunks = warps / (plan.row_tile / kTileRows);
  const Variant& variant = VariantOf(token_tiles, norm, args.k);
  const Layout layout = LayoutOf(norm, variant.in_flight, args.m, args.k, warps, token_tiles);
  return LaunchDependent(variant.kernel, static_cast<unsigned>(plan.blocks), warps * kWarpThreads,
                         layout.x_bytes + 2 * layout.sum_bytes + layout.group_bytes, stream, args, chunks);
}

}  // namespace ridge::kernels::cuda
