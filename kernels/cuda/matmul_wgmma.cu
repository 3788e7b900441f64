// The matmul of many rows by sm_90a's own instructions: the same bits as the other kernels, several times
// their rate.
//
// Geometry: a block forms tiles of 128 rows of W x 64 or 128 tokens. Two warpgroups multiply, each 64 of the
// rows by all tokens: W is the A operand from registers, as it is packed, tokens the B operand in shared
// memory. One thread of a third warpgroup has the copy engine fill a ring of stages of 64 columns, as far
// ahead as there is room, over tiles. A fourth finishes tiles (matmul_tile_output.cuh), which the first two
// leave in shared memory, while these multiply the next. Blocks stay for one tile after another; with split
// chunks a block has one chunk of K of one tile, and who multiplied also adds and writes.
//
// Two row blocks and two token blocks are a cluster where both divide: half of each operand's stage comes by
// its neighbour's copy, so that L2 gives 64 columns of 128 x 128 for 16 KiB a block. A stage is copied to
// when the multiplying warps of all blocks that it goes to have left it.
//
// Order of tiles: the operand that is larger is read once, while the other one stays in L2.
//
// Bits: one chain of k steps a chunk, chunk sums ascending. Shared memory: 224 KiB. Bytes: W and x once, what
// L2 gives besides. FLOPs: 2 m n k. Reference: reference::Matmul.
#include <algorithm>
#include <array>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/matmul_stage.cuh"
#include "kernels/cuda/matmul_tile_output.cuh"
#include "kernels/cuda/matmul_walk.cuh"
#include "kernels/cuda/tensor_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace ridge::kernels::cuda {
namespace {

// Threads by what they do: the first multiply, one of the next warpgroup copies, the last one finishes.
constexpr int kMultipliers = 256;
constexpr int kFirstFinisher = kMultipliers + 128;
constexpr int kThreads = kFirstFinisher + kTileOutputWarps * kWarpThreads;
// Registers a thread of each has.
[[maybe_unused]] constexpr int kMultiplyRegisters = 184, kCopyRegisters = 40, kFinishRegisters = 96;

constexpr int kRowTiles = kTileOutputRows / kTileRows;
constexpr int kWeightBytes = kRowTiles * kStageTileBytes;  // of a stage
constexpr int kMaxCluster = 2;                             // blocks along rows, and along tokens
[[maybe_unused]] constexpr int kMultiplyBarrier = 1;
[[maybe_unused]] constexpr int kTogether = 4;  // fragments that are written together

template <int kTokens>
struct Shape {
  static constexpr int kStageBytes = kWeightBytes + kTokens * kTokenBytes;
  static constexpr int kTileBytes = kTokens * kTileOutputRows * 4;
  static constexpr int kSharedBytes = 224 * 1024;
  static constexpr int kStages = (kSharedBytes - kTileBytes) / kStageBytes;
  static_assert(kStages * kStageBytes + kTileBytes == kSharedBytes);
};

struct MatmulMaps {
  CUtensorMap weights, tokens;
};

#if RIDGE_HAS_WGMMA

template <int kStages>
struct Stages {
  uint32_t ring, full, empty;  // shared addresses

  __device__ static uint32_t Parity(uint32_t stage) { return stage / kStages & 1; }
  __device__ uint32_t Full(uint32_t stage) const { return full + stage % kStages * 8; }
  __device__ uint32_t Empty(uint32_t stage) const { return empty + stage % kStages * 8; }
};

// The thread that has the ring filled.
template <int kTokens>
__device__ void CopyStages(const MatmulMaps& maps, const Tiling& tiling, const Walk& walk,
                           const Stages<Shape<kTokens>::kStages>& stages) {
  using S = Shape<kTokens>;
  // This block's share of what all blocks of its row, and of its column, of the cluster have.
  const int tiles = kRowTiles / tiling.cluster_tokens, tokens = kTokens / tiling.cluster_rows;
  const int first_tile = walk.token_in_cluster * tiles, first_token = walk.row_in_cluster * tokens;
  uint16_t same_rows = 0, same_tokens = 0;
  for (int i = 0; i < tiling.cluster_tokens; ++i)
    same_rows |= static_cast<uint16_t>(1 << (i * tiling.cluster_rows + walk.row_in_cluster));
  for (int i = 0; i < tiling.cluster_rows; ++i)
    same_tokens |= static_cast<uint16_t>(1 << (walk.token_in_cluster * tiling.cluster_rows + i));

  const auto copy_weights = [&](uint32_t stage, int index, int row_tile) {
    AwaitBarrier(stages.Empty(stage), stages.Parity(stage) ^ 1, 20);
    ArriveExpecting(stages.Full(stage), S::kStageBytes);
    CopyBox(stages.ring + stage % S::kStages * S::kStageBytes + first_tile * kStageTileBytes, maps.weights, 0,
            (walk.first_stage + index) * kStageSteps, row_tile + first_tile, stages.Full(stage), same_rows);
  };
  const auto copy_tokens = [&](uint32_t stage, int index, int token) {
    CopyBox(stages.ring + stage % S::kStages * S::kStageBytes + kWeightBytes + first_token * kTokenBytes,
            maps.tokens, (walk.first_stage + index) * kStageDepth, token + first_token, stages.Full(stage),
            same_tokens);
  };
  PrefetchMap(maps.weights);
  PrefetchMap(maps.tokens);
  // The first weights do not wait for the kernel before.
  const int early = min(S::kStages, walk.num_stages);
  int row_tile = walk.RowTile(tiling, walk.cluster, kRowTiles),
      token = walk.Token(tiling, walk.cluster, kTokens);
  for (int i = 0; i < early; ++i) copy_weights(i, i, row_tile);
  WaitForPriorKernel();
  for (int i = 0; i < early; ++i) copy_tokens(i, i, token);
  uint32_t stage = early;
  int index = early;
  for (int tile = walk.cluster; tile < walk.num_tiles; tile += walk.num_clusters, index = 0) {
    row_tile = walk.RowTile(tiling, tile, kRowTiles);
    token = walk.Token(tiling, tile, kTokens);
    for (; index < walk.num_stages; ++index, ++stage) {
      copy_weights(stage, index, row_tile);
      copy_tokens(stage, index, token);
    }
  }
}

// The sums of one tile, of chunks in order; `stage` counts on.
template <int kTokens>
__device__ void MultiplyTile(const MatmulArgs& args, const Tiling& tiling, const Walk& walk,
                             const Stages<Shape<kTokens>::kStages>& stages, uint32_t* stage,
                             FragmentC (&total)[kTokens / 8]) {
  using S = Shape<kTokens>;
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const int chunk_stages = static_cast<int>(DotChunk(args.k)) / kStageDepth;
  // The blocks that a stage's copies came from, one a lane.
  const int sources = tiling.cluster_tokens + tiling.cluster_rows - 1;
  const int other = lane - tiling.cluster_tokens + (lane - tiling.cluster_tokens >= walk.row_in_cluster);
  const uint32_t source = lane < tiling.cluster_tokens ? lane * tiling.cluster_rows + walk.row_in_cluster
                                                       : walk.token_in_cluster * tiling.cluster_rows + other;
  const auto release = [&](uint32_t done) {
    if (lane < sources) ArriveInCluster(stages.Empty(done), source);
  };
#pragma unroll
  for (FragmentC& fragment : total) fragment = {{kNoTotal, kNoTotal, kNoTotal, kNoTotal}};
#pragma unroll 1
  for (int left = walk.num_stages; left > 0; left -= chunk_stages) {
    float c[kTokens / 2] = {};
    FragmentA a[2][kStageSteps];
    const uint32_t end = *stage + min(left, chunk_stages);
    bool pending = false;  // the stage before is still being multiplied
#pragma unroll 1
    while (*stage != end) {
#pragma unroll
      for (int half = 0; half < 2; ++half, ++*stage) {
        const uint32_t place = stages.ring + *stage % S::kStages * S::kStageBytes;
        AwaitBarrier(stages.Full(*stage), stages.Parity(*stage), 21);
#pragma unroll
        for (int i = 0; i < kStageSteps; ++i) a[half][i] = LoadStageA(place, warp, i, lane);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < kStageSteps; ++i)
          Wgmma(c, a[half][i], SwizzledOperand(place + kWeightBytes + i * kTileDepth * 2));
        WgmmaCommit();
        WgmmaWait<1>();
        if (half == 1 || pending) release(*stage - 1);
      }
      pending = true;
    }
    WgmmaWait<0>();
    release(end - 1);
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      total[i / 4].x[i % 4] = __fadd_rn(total[i / 4].x[i % 4], c[i]);
    }
  }
}

// A tile of which each block has one chunk: the last of them to end adds all and writes.
template <int kTokens>
__device__ void WriteSplitTile(const MatmulArgs& args, const Tiling& tiling, const Walk& walk, int tile,
                               FragmentC (&total)[kTokens / 8]) {
  const auto sync = [] {
    asm volatile("bar.sync %0, %1;" ::"n"(kMultiplyBarrier), "n"(kMultipliers) : "memory");
  };
  if (!FoldChunks<kTokens / 8, kMultipliers>(args, total, sync)) return;
  const int row = (walk.RowTile(tiling, tile, kRowTiles) + threadIdx.x / kWarpThreads) * kTileRows +
                  threadIdx.x % kWarpThreads / 4;
  const int token = walk.Token(tiling, tile, kTokens) + threadIdx.x % 4 * 2;
#pragma unroll
  for (int first = 0; first < kTokens / 8; first += kTogether) {
    FragmentC some[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) some[i] = total[first + i];
    WriteFragments<kTogether>(
        args, some, [&](int) { return row; }, [&](int f) { return token + (first + f) * 8; });
  }
}

__device__ inline void SyncFinishers() {
  asm volatile("bar.sync 2, %0;" ::"n"(kTileOutputWarps * kWarpThreads) : "memory");
}

// Barriers of the tile that is handed over: filled by the warps that multiply, emptied by those that finish.
// Each thread arrives for itself: one a warp behind a __syncwarp was no faster, and racecheck does not follow
// it.
struct Handover {
  float* sums;
  uint32_t filled, emptied;  // shared addresses
};

template <int kTokens>
__device__ void LeaveTile(const Handover& tile, uint32_t number, const FragmentC (&total)[kTokens / 8]) {
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const int row = warp * kTileRows + lane / 4, token = lane % 4 * 2;
  AwaitBarrier(tile.emptied, (number & 1) ^ 1, 22);
#pragma unroll
  for (int f = 0; f < kTokens / 8; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) tile.sums[TilePlace(token + f * 8 + i % 2, row + i / 2 * 8)] = total[f].x[i];
  }
  Arrive(tile.filled);
}

template <int kTokens>
__device__ void FinishTiles(const MatmulArgs& args, const Tiling& tiling, const Walk& walk,
                            const Handover& handover, TileToken* tokens) {
  TileOutput tile{handover.sums,
                  tokens,
                  0,
                  0,
                  static_cast<int>(threadIdx.x - kFirstFinisher) / kWarpThreads,
                  static_cast<int>(threadIdx.x % kWarpThreads)};
  uint32_t number = 0;
#pragma unroll 1
  for (int i = walk.cluster; i < walk.num_tiles; i += walk.num_clusters, ++number) {
    tile.row = walk.RowTile(tiling, i, kRowTiles) * kTileRows;
    tile.token = walk.Token(tiling, i, kTokens);
    const int num_tokens = min(kTokens, args.m - tile.token);
    if (args.output == MatmulOutput::kRopeKv) {
      FindTokens(args.rope, tile, num_tokens);
      SyncFinishers();
    }
    const auto await = [&] { AwaitBarrier(handover.filled, number & 1, 23); };
    if (args.output == MatmulOutput::kSwiGlu) {
      WriteTileGated(args, tile, num_tokens, await);
    } else if (args.output == MatmulOutput::kRopeKv) {
      WriteTileRopeKv(args, tile, num_tokens, await);
      SyncFinishers();  // nobody looks at the tokens any more
    } else {
      WriteTileSums(args, tile, num_tokens, await);
    }
    Arrive(handover.emptied);
  }
}

#endif

template <int kTokens, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1)
    MatmulWgmmaKernel(const __grid_constant__ MatmulMaps maps, const __grid_constant__ MatmulArgs args,
                      const __grid_constant__ Tiling tiling) {
#if RIDGE_HAS_WGMMA
  using S = Shape<kTokens>;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ uint64_t barriers[2 * S::kStages + 2];
  __shared__ TileToken tokens[kTokens];
  Stages<S::kStages> stages;
  stages.ring = SharedAddress(shared);
  stages.full = SharedAddress(barriers);
  stages.empty = stages.full + S::kStages * 8;
  Handover handover;
  handover.sums = reinterpret_cast<float*>(shared + S::kStages * S::kStageBytes);
  handover.filled = stages.empty + S::kStages * 8;
  handover.emptied = handover.filled + 8;
  const Walk walk(args, tiling, kSplit);
  if (threadIdx.x == 0) {
    const int copied_to = tiling.cluster_tokens + tiling.cluster_rows - 1;
    for (int i = 0; i < S::kStages; ++i) {
      InitBarrier(stages.full + i * 8, 1);
      InitBarrier(stages.empty + i * 8, kMultipliers / kWarpThreads * copied_to);
    }
    InitBarrier(handover.filled, kMultipliers);
    InitBarrier(handover.emptied, kTileOutputWarps * kWarpThreads);
    FenceBarrierInit();
  }
  SyncCluster();
  LaunchNextKernel();
  if (threadIdx.x < kMultipliers) {
    SetRegisters<kMultiplyRegisters, true>();
    if (kSplit) WaitForPriorKernel();
    uint32_t stage = 0, number = 0;
#pragma unroll 1
    for (int tile = walk.cluster; tile < walk.num_tiles; tile += walk.num_clusters, ++number) {
      FragmentC total[kTokens / 8];
      MultiplyTile<kTokens>(args, tiling, walk, stages, &stage, total);
      if constexpr (kSplit) {
        WriteSplitTile<kTokens>(args, tiling, walk, tile, total);
      } else {
        LeaveTile<kTokens>(handover, number, total);
      }
    }
  } else if (threadIdx.x < kFirstFinisher) {
    SetRegisters<kCopyRegisters, false>();
    if (threadIdx.x == kMultipliers) CopyStages<kTokens>(maps, tiling, walk, stages);
    __syncwarp();
  } else {
    SetRegisters<kFinishRegisters, false>();
    if constexpr (!kSplit) {
      WaitForPriorKernel();
      FinishTiles<kTokens>(args, tiling, walk, handover, tokens);
    }
  }
  SyncCluster();  // others may still copy to here, and arrive here
#endif
}

template <int kTokens, bool kSplit>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(MatmulWgmmaKernel<kTokens, kSplit>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Shape<kTokens>::kSharedBytes);
}

int32_t CeilDivide(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}

// Clusters of so many blocks that run at once; 0 where part of the card is another's and none fits into the
// rest.
template <int kTokens>
int32_t MostClusters(int32_t blocks) {
  static const auto most = [] {
    std::array<int32_t, kMaxCluster * kMaxCluster + 1> counts{};
    if (Prepare<kTokens, false>() != cudaSuccess) return counts;
    for (int32_t size : {1, 2, 4}) {
      ClusterLaunch launch(dim3(static_cast<unsigned>(size)), size, kThreads, Shape<kTokens>::kSharedBytes,
                           nullptr);
      int clusters = 0;
      if (cudaOccupancyMaxActiveClusters(&clusters, MatmulWgmmaKernel<kTokens, false>, launch.config()) ==
          cudaSuccess)
        counts[static_cast<size_t>(size)] = clusters;
    }
    return counts;
  }();
  return most[static_cast<size_t>(blocks)];
}

template <int kTokens>
cudaError_t Launch(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  Tiling tiling;
  tiling.row_blocks = CeilDivide(args.n, kRowTiles * kTileRows);
  tiling.token_blocks = CeilDivide(args.m, kTokens);
  tiling.cluster_rows = plan.cluster_rows;
  tiling.cluster_tokens = plan.cluster_tokens;
  const auto divides = [](int cluster, int blocks) {
    return (cluster == 1 || cluster == kMaxCluster) && blocks % cluster == 0;
  };
  if (!divides(tiling.cluster_rows, tiling.row_blocks) ||
      !divides(tiling.cluster_tokens, tiling.token_blocks))
    return cudaErrorInvalidValue;
  tiling.rows_first = args.n < args.m;
  MatmulMaps maps;
  cudaError_t error =
      MapPacked(args.w, args.n, args.k, kStageSteps, kRowTiles / tiling.cluster_tokens, &maps.weights);
  if (error == cudaSuccess)
    error = MapRows(args.x, args.m, args.k, kTokens / tiling.cluster_rows, &maps.tokens);
  if (error != cudaSuccess) return error;
  const int32_t cluster = tiling.cluster_rows * tiling.cluster_tokens;
  const int32_t clusters = tiling.row_blocks * tiling.token_blocks / cluster;
  if (plan.split_chunks) {
    const dim3 grid(static_cast<unsigned>(clusters * cluster), 1, static_cast<unsigned>(NumChunks(args.k)));
    const ClusterLaunch launch(grid, cluster, kThreads, Shape<kTokens>::kSharedBytes, stream);
    return cudaLaunchKernelEx(launch.config(), MatmulWgmmaKernel<kTokens, true>, maps, args, tiling);
  }
  const dim3 grid(
      static_cast<unsigned>(std::min(clusters, std::max(1, MostClusters<kTokens>(cluster))) * cluster));
  const ClusterLaunch launch(grid, cluster, kThreads, Shape<kTokens>::kSharedBytes, stream);
  return cudaLaunchKernelEx(launch.config(), MatmulWgmmaKernel<kTokens, false>, maps, args, tiling);
}

}  // namespace

bool HasWgmma() {
  static const bool has = [] {
    DeviceInfo info;
    cudaFuncAttributes attributes{};
    return GetDeviceInfo(&info) == cudaSuccess && info.capability == 90 &&
           cudaFuncGetAttributes(&attributes, MatmulWgmmaKernel<128, false>) == cudaSuccess &&
           attributes.ptxVersion == 90 && CanMapTensors();
  }();
  return has;
}

int32_t MostInWgmmaCluster() {
  if (!HasWgmma()) return 1;
  for (const int32_t blocks : {4, 2}) {
    if (MostClusters<64>(blocks) > 0 && MostClusters<128>(blocks) > 0) return blocks;
  }
  return 1;
}

cudaError_t PrepareMatmulWgmma() {
  if (!HasWgmma()) return cudaSuccess;
  for (cudaError_t (*prepare)() :
       {Prepare<64, false>, Prepare<64, true>, Prepare<128, false>, Prepare<128, true>}) {
    if (cudaError_t error = prepare(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchMatmulWgmma(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  if (args.m < 1 || args.k % kTileDepth != 0 || args.norm_x != nullptr || args.unmerged.items != nullptr ||
      args.output == MatmulOutput::kArgMax || args.output == MatmulOutput::kPartials || !HasWgmma())
    return cudaErrorInvalidValue;
  if (plan.token_tile == 64) return Launch<64>(plan, args, stream);
  if (plan.token_tile == 128) return Launch<128>(plan, args, stream);
  return cudaErrorInvalidValue;
}

}  // namespace ridge::kernels::cuda
