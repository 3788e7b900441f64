// The matmul of few rows (m <= 32), bound by the weights' way from memory.
//
// Geometry: a warp takes one tile of 16 rows of W and one chunk of K; the warps of a block take all chunks of
// one or more tiles, round after round. Weights are the A operand and go from memory to registers, always 16
// loads of 16 bytes a lane in flight (8 KiB a warp; twice that where chunks are long), the first of them
// before the kernel waits for the one before it. Tokens are the n8 operand. Chunk sums meet in shared memory.
// x comes from memory in slices of 256 columns a warp, the next one while the last is used, or is made: with
// a norm by the block from fp32 rows, from attention's chunks by each warp. Shared memory: x (one or two
// slices a warp, or all rows; 8 KiB a warp for attention's chunks), twice 20 x 8 floats a token tile and
// warp. Bytes: 2 n k, once, and x once a block from L2. FLOPs: 2 m n k. Reference: reference::Matmul, within
// rounding.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_decode_input.cuh"
#include "kernels/cuda/matmul_few_rows.cuh"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/sampling_row.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kPlaces = 64;
// Such blocks of weights that a warp has in flight: two where a chunk is long, since a block of threads then
// has few chains.
constexpr int kShortFlight = 1, kLongFlight = 2;

__host__ __device__ int ChunkSteps(int k) {
  return static_cast<int>(DotChunk(k)) / kTileDepth;
}

// Where x comes from.
enum class Input { kRows, kNorm, kUnmerged };

struct Layout {
  int x_bytes;
  int sum_bytes;      // of one of two places
  int prepare_bytes;  // sums of a norm's groups, or attention's chunks
};

__host__ __device__ Layout LayoutOf(Input input, int m, int k, int warps, int token_tiles) {
  Layout layout{};
  const int slices = ChunkSteps(k) > kBlockSteps ? 2 : 1;
  layout.x_bytes =
      kBeyondRows + (input == Input::kNorm ? m * (k + kRowPad) * 2 : warps * slices * m * kSliceStride * 2);
  layout.sum_bytes = warps * token_tiles * 8 * kSumStride * 4;
  layout.prepare_bytes = input == Input::kNorm       ? m * NormGroups(k) * 4
                         : input == Input::kUnmerged ? warps * kMaxUnmerged * kSliceDepth * 4
                                                     : 0;
  return layout;
}

// Registers a thread: two blocks share a multiprocessor, or one with long chunks.
constexpr int MaxRegisters(int flight) {
  return flight == kShortFlight ? 128 : 224;
}

// Where a warp stands in its stream of weights: block after block of its chunk of a tile, then of the next
// tile.
struct WeightStream {
  const uint4* tile_weights;  // the chunk's first step in the tile
  int64_t tile_distance;      // to the next tile
  int tiles_left;             // with this one
  int steps;                  // of the chunk
  int block;                  // within the chunk

  __device__ void Advance() {
    block += 1;
    if (block * kBlockSteps < steps) return;
    block = 0;
    tile_weights += tile_distance;
    tiles_left -= 1;
  }
  __device__ const uint4* Weights() const { return tile_weights + block * kBlockSteps * kWarpThreads; }
  // How many steps the block has; none behind the last tile.
  __device__ int Steps() const { return tiles_left > 0 ? min(kBlockSteps, steps - block * kBlockSteps) : 0; }
};

// Multiplies a block of up to kBlockSteps steps with a slice of x, and sends for the weights that will take
// its place.
template <bool kWhole, int kTokenTiles>
__device__ void MultiplyBlock(FragmentC (&c)[kTokenTiles], uint4* weights, int steps, uint32_t slice,
                              const RowPlaces<kTokenTiles>& rows, const WeightStream& next) {
  const uint4* from = next.Weights();
  const int next_steps = next.Steps();
  // Fragments of x are loaded one pair of steps ahead, where there are registers for it.
  constexpr int kAhead = kTokenTiles <= 2 ? 1 : 0;
  uint32_t b[1 + kAhead][kTokenTiles][4];
  if constexpr (kAhead > 0) rows.Load(b[0], slice, 0);
#pragma unroll
  for (int i = 0; i < kBlockSteps; i += 2) {
    if (i + 2 * kAhead < kBlockSteps) rows.Load(b[(i / 2 + kAhead) % (1 + kAhead)], slice, i + 2 * kAhead);
#pragma unroll
    for (int j = i; j < i + 2; ++j) {
      const FragmentA a = {{weights[j].x, weights[j].y, weights[j].z, weights[j].w}};
      if (kWhole || j < steps) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          const uint32_t(&now)[4] = b[i / 2 % (1 + kAhead)][t];
          Mma(c[t], a, {{now[j % 2 * 2], now[j % 2 * 2 + 1]}});
        }
      }
      LoadStreamingIf(weights[j], from + j * kWarpThreads, j < next_steps);
    }
  }
}

template <Input kInput>
__device__ FoldPlaces FoldPlacesOf(const MatmulArgs& args, int begin, int count, int lane) {
  if constexpr (kInput == Input::kUnmerged) return FoldPlaces(args.unmerged, begin, count, lane);
  return {};
}

template <int kTokenTiles, Input kInput, int kFlight>
__global__ void __maxnreg__(MaxRegisters(kFlight))
    MatmulDecodeKernel(const MatmulArgs args, const int chunks) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ RopePlace places[kPlaces];  // of the first round's first outputs
  const int warps = blockDim.x / kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  constexpr bool kNorm = kInput == Input::kNorm;
  const Layout layout = LayoutOf(kInput, args.m, args.k, warps, kTokenTiles);

  const int tiles = warps / chunks, stride_tiles = gridDim.x * tiles;
  const int num_tiles = static_cast<int>(NumRowTiles(args.n));
  const int depth = args.k / kTileDepth;
  const int first = warp % chunks * ChunkSteps(args.k);
  const int tile = blockIdx.x * tiles + warp / chunks;
  WeightStream ahead;
  ahead.tile_weights =
      reinterpret_cast<const uint4*>(args.w) + (int64_t{tile} * depth + first) * kWarpThreads + lane;
  ahead.tile_distance = int64_t{stride_tiles} * depth * kWarpThreads;
  ahead.tiles_left = (num_tiles - tile + stride_tiles - 1) / stride_tiles;
  ahead.steps = min(ChunkSteps(args.k), depth - first);
  ahead.block = 0;
  const int blocks = (ahead.steps + kBlockSteps - 1) / kBlockSteps;
  uint4 weights[kFlight][kBlockSteps];
#pragma unroll
  for (int f = 0; f < kFlight; ++f) {
#pragma unroll
    for (int i = 0; i < kBlockSteps; ++i) {
      weights[f][i] = {};
      LoadStreamingIf(weights[f][i], ahead.Weights() + i * kWarpThreads, i < ahead.Steps());
    }
    ahead.Advance();
  }
  // The next matmul's weights would be in the way of attention's chunks.
  if (kInput != Input::kUnmerged) LaunchNextKernel();
  // The first round's outputs: thread i has row i % 8 (and that + 8) of a token and tile.
  const int out_row = (blockIdx.x * tiles + threadIdx.x / 8 / args.m) * kTileRows + threadIdx.x % 8;
  const int out_token = threadIdx.x < tiles * args.m * 8 ? threadIdx.x / 8 % args.m : args.m;
  const bool has_output = out_token < args.m && out_row + 8 < args.n;
  const bool has_place = has_output && args.output == MatmulOutput::kRopeKv && threadIdx.x < kPlaces;
  if (has_place) places[threadIdx.x] = FindRopePlace(args.bias, args.rope, args.rope.kv, out_token, out_row);
  const FoldPlaces fold = FoldPlacesOf<kInput>(args, first * kTileDepth, ahead.steps * kTileDepth, lane);
  WaitForPriorKernel();
  if (kInput == Input::kUnmerged) LaunchNextKernel();
  const bool has_residual = has_output && args.output == MatmulOutput::kResidual && args.bias == nullptr;
  const float* y = args.y + static_cast<int64_t>(out_token) * args.y_stride + out_row;
  const float residual[2] = {has_residual ? y[0] : 0.0f, has_residual ? y[8] : 0.0f};

  const RowPlaces<kTokenTiles> rows(args.m, (kNorm ? args.k + kRowPad : kSliceStride) * 2, lane);
  uint32_t x = SharedAddress(shared);
  const uint32_t slice_bytes = args.m * kSliceStride * 2;
  // Where a chunk is one slice, it is copied once for all tiles; else slice after slice, one ahead.
  const bool one_slice = kNorm || blocks == 1;
  const int slice_places = ChunkSteps(args.k) > kBlockSteps ? 2 : 1;
  int turn = 0;  // of the two places
  const auto copy_slice = [&](int block, int place) {
    CopySlice(args, (first + block * kBlockSteps) * kTileDepth,
              (ahead.steps - block * kBlockSteps) * kTileDepth, x + place * slice_bytes, lane);
  };
  if constexpr (kNorm) {
    NormRows(args, reinterpret_cast<Half*>(shared),
             reinterpret_cast<float*>(shared + layout.x_bytes + 2 * layout.sum_bytes));
    x += first * kTileDepth * 2;
  } else {
    x += warp * slice_places * slice_bytes;
    if constexpr (kInput == Input::kUnmerged) {
      // Every block has the same values: one counts those that saturate.
      float* chunks_of_slice = reinterpret_cast<float*>(shared + layout.x_bytes + 2 * layout.sum_bytes) +
                               warp * kMaxUnmerged * kSliceDepth;
      FoldSlice(fold, args.unmerged.head_dim, ahead.steps * kTileDepth,
                reinterpret_cast<Half*>(shared + (x - SharedAddress(shared))), chunks_of_slice, lane,
                blockIdx.x == 0 ? args.saturations : nullptr);
      __syncwarp();
    } else {
      copy_slice(0, 0);
    }
    if (one_slice && kInput == Input::kRows) {
      WaitForCopies<0>();
      __syncwarp();
    }
  }

  __shared__ unsigned long long best[kMaxDecodeRows];  // kArgMax's, of this block
  if (args.output == MatmulOutput::kArgMax && threadIdx.x < kMaxDecodeRows) best[threadIdx.x] = kNoCandidate;

  // A tile a round; the sums have two places, so that one barrier a round is enough.
  int flight = 0;
  for (int round = 0; (blockIdx.x + round * gridDim.x) * tiles < num_tiles; ++round) {
    FragmentC c[kTokenTiles] = {};
    for (int block = 0; block < blocks; ++block) {
      uint32_t slice = x;
      if constexpr (kNorm) {
        slice += block * kSliceDepth * 2;
      } else if (!one_slice) {
        copy_slice(block + 1 < blocks ? block + 1 : 0,
                   1 - turn);  // behind the last the first again, for the next tile
        slice += turn * slice_bytes;
        turn = 1 - turn;
        WaitForCopies<1>();
        __syncwarp();
      }
      const int steps = min(kBlockSteps, ahead.steps - block * kBlockSteps);
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (kFlight > 1 && f != flight) continue;
        if (steps == kBlockSteps) {
          MultiplyBlock<true, kTokenTiles>(c, weights[f], steps, slice, rows, ahead);
        } else {
          MultiplyBlock<false, kTokenTiles>(c, weights[f], steps, slice, rows, ahead);
        }
      }
      flight = (flight + 1) % kFlight;
      ahead.Advance();
      if (!one_slice) __syncwarp();  // the slice may be overwritten
    }

    float* sums = reinterpret_cast<float*>(shared + layout.x_bytes) + round % 2 * (layout.sum_bytes / 4);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      StoreSums(c[t], sums + (warp * kTokenTiles + t) * 8 * kSumStride, lane);
    }
    __syncthreads();
    // The warps take turns at being the first of those that add.
    const int thread = (warp + round) % warps * kWarpThreads + lane;
    for (int i = thread; i < tiles * args.m * 8; i += blockDim.x) {
      const int row = i % 8, token = i / 8 % args.m, t = i / 8 / args.m;
      const float* sum = sums + (t * chunks * kTokenTiles * 8 + token) * kSumStride + row;
      float low, high;
      AddSums(sum, chunks, kTokenTiles * 8 * kSumStride, &low, &high);
      const int out = ((blockIdx.x + round * gridDim.x) * tiles + t) * kTileRows + row;
      if (args.output == MatmulOutput::kArgMax) {
        const uint64_t candidate = max(out < args.n ? PackCandidate(low, out) : kNoCandidate,
                                       out + 8 < args.n ? PackCandidate(high, out + 8) : kNoCandidate);
        atomicMax(best + token, static_cast<unsigned long long>(candidate));
      } else if (has_place && round == 0 && i == static_cast<int>(threadIdx.x)) {
        WriteRopeAt(args, places[i], low, high);
      } else if (has_residual && round == 0 && i == static_cast<int>(threadIdx.x)) {
        float* to = args.y + static_cast<int64_t>(token) * args.y_stride + out;
        to[0] = __fadd_rn(residual[0], low);
        to[8] = __fadd_rn(residual[1], high);
      } else {
        WriteSums(args, token, out, low, high);
      }
    }
  }
  if (args.output == MatmulOutput::kArgMax) {
    __syncthreads();
    if (threadIdx.x < args.m) {
      atomicMax(reinterpret_cast<unsigned long long*>(args.best) + threadIdx.x, best[threadIdx.x]);
    }
  }
  if constexpr (!kNorm) WaitForCopies<0>();
}

using Kernel = void (*)(MatmulArgs, int);

// By token tiles: 1, 2, 4. Four leave room for one block on a multiprocessor, which then has twice as much in
// flight.
constexpr Kernel kShortKernels[] = {MatmulDecodeKernel<1, Input::kRows, kShortFlight>,
                                    MatmulDecodeKernel<2, Input::kRows, kShortFlight>,
                                    MatmulDecodeKernel<4, Input::kRows, kLongFlight>};
constexpr Kernel kNormKernel = MatmulDecodeKernel<1, Input::kNorm, kShortFlight>;
constexpr Kernel kUnmergedKernel = MatmulDecodeKernel<1, Input::kUnmerged, kShortFlight>;
constexpr Kernel kLongKernels[] = {MatmulDecodeKernel<1, Input::kRows, kLongFlight>,
                                   MatmulDecodeKernel<2, Input::kRows, kLongFlight>,
                                   MatmulDecodeKernel<4, Input::kRows, kLongFlight>};

Kernel KernelOf(int token_tiles, Input input, int k) {
  if (input == Input::kNorm) return kNormKernel;
  if (input == Input::kUnmerged) return kUnmergedKernel;
  return (ChunkSteps(k) > kBlockSteps ? kLongKernels : kShortKernels)[token_tiles / 2];
}

int NumWarps(const MatmulPlan& plan, int k) {
  return plan.row_tile / kTileRows * static_cast<int>((k + DotChunk(k) - 1) / DotChunk(k));
}

}  // namespace

bool TakesNorm(const MatmulPlan& plan, int32_t m, int32_t k) {
  return plan.kernel == MatmulKernel::kDecode && plan.token_tile == 8 &&
         m * NormGroups(k) <= NumWarps(plan, k) * kWarpThreads / kVirtualLanes;
}

bool TakesUnmerged(const MatmulPlan& plan, int32_t k, int32_t head_dim) {
  return plan.kernel == MatmulKernel::kDecode && plan.token_tile == 8 && ChunkSteps(k) == kBlockSteps &&
         (head_dim == 64 || head_dim == 128);
}

int32_t MatmulDecodeSharedBytes(const MatmulPlan& plan, int32_t m, int32_t k) {
  const Layout layout = LayoutOf(Input::kRows, m, k, NumWarps(plan, k), plan.token_tile / 8);
  return layout.x_bytes + 2 * layout.sum_bytes + 8 * kMaxDecodeRows +
         static_cast<int32_t>(sizeof(RopePlace)) * kPlaces;
}

cudaError_t PrepareMatmulDecode() {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (Kernel kernel : {kShortKernels[0], kShortKernels[1], kNormKernel, kUnmergedKernel, kLongKernels[0],
                        kLongKernels[1], kLongKernels[2]}) {
    cudaFuncAttributes attributes{};
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) break;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared - static_cast<int>(attributes.sharedSizeBytes));
  }
  return error;
}

cudaError_t LaunchMatmulDecode(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  const int warps = NumWarps(plan, args.k);
  const Input input = args.norm_x != nullptr           ? Input::kNorm
                      : args.unmerged.items != nullptr ? Input::kUnmerged
                                                       : Input::kRows;
  if (args.m < 1 || args.m > plan.token_tile || args.k % kTileDepth != 0 ||
      warps * kWarpThreads > kMaxThreads || args.output == MatmulOutput::kPartials ||
      (input == Input::kNorm && !TakesNorm(plan, args.m, args.k)) ||
      (input == Input::kUnmerged && (args.m != 1 || !TakesUnmerged(plan, args.k, args.unmerged.head_dim)))) {
    return cudaErrorInvalidValue;
  }
  const int token_tiles = plan.token_tile / 8, chunks = warps / (plan.row_tile / kTileRows);
  const Layout layout = LayoutOf(input, args.m, args.k, warps, token_tiles);
  return LaunchDependent(KernelOf(token_tiles, input, args.k), static_cast<unsigned>(plan.blocks),
                         warps * kWarpThreads, layout.x_bytes + 2 * layout.sum_bytes + layout.prepare_bytes,
                         stream, args, chunks);
}

}  // namespace ridge::kernels::cuda
