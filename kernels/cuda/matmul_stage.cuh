// Parts that the matmuls through shared memory have in common: the stages of the ring and the fold of split chunks.
//
// A stage holds 64 columns of both operands. W's tiles lie in it as they are packed. Tokens are rows of 128 bytes whose
// 16-byte parts are swizzled by row % 8: no bank conflicts for ldmatrix, and the 128-byte swizzle of wgmma.
#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {

inline constexpr int kStageDepth = 64;                            // columns
inline constexpr int kStageSteps = kStageDepth / kTileDepth;      // k steps
inline constexpr int kStageTileBytes = kStageSteps * kTileSize * 2;  // of one row tile
inline constexpr int kTokenBytes = kStageDepth * 2;

// What a block computes.
struct BlockWork {
  int row_tile;   // first
  int num_tiles;  // row tiles of W
  int token;      // first
  int depth_begin, depth_end;  // k steps
};

template <bool kSplit>
__device__ inline BlockWork WorkOf(const MatmulArgs& args, int row_tiles, int tokens) {
  const int depth = args.k / kTileDepth;
  const int chunk_depth = static_cast<int>(DotChunk(args.k)) / kTileDepth;
  BlockWork work;
  work.row_tile = blockIdx.y * row_tiles;
  work.num_tiles = static_cast<int>(NumRowTiles(args.n));
  work.token = blockIdx.x * tokens;
  work.depth_begin = kSplit ? blockIdx.z * chunk_depth : 0;
  work.depth_end = kSplit ? min(work.depth_begin + chunk_depth, depth) : depth;
  return work;
}

// Where 16-byte part `part` of a token stands among the tokens of a stage.
__device__ inline uint32_t TokenPlace(int token, int part) {
  return token * kTokenBytes + (part ^ (token % 8)) * 16;
}

// Start the copies of the stage that begins at k step `step`: kRowTiles row tiles, then kTokens tokens.
template <int kRowTiles, int kThreads>
__device__ inline void CopyWeights(const MatmulArgs& args, const BlockWork& work, int step, uint32_t stage) {
  const int depth = args.k / kTileDepth;
  const uint4* w = reinterpret_cast<const uint4*>(args.w);
#pragma unroll
  for (int i = threadIdx.x; i < kRowTiles * kStageTileBytes / 16; i += kThreads) {
    const int tile = work.row_tile + i / (kStageSteps * kWarpThreads);
    const int in_tile = i % (kStageSteps * kWarpThreads);
    const bool valid = tile < work.num_tiles && step + in_tile / kWarpThreads < work.depth_end;
    const int64_t from = (int64_t{tile} * depth + step) * kWarpThreads + in_tile;
    CopyAsync16(stage + i * 16, valid ? w + from : w, valid);
  }
}

template <int kRowTiles, int kTokens, int kThreads>
__device__ inline void CopyTokens(const MatmulArgs& args, const BlockWork& work, int step, uint32_t stage) {
#pragma unroll
  for (int i = threadIdx.x; i < kTokens * (kTokenBytes / 16); i += kThreads) {
    const int token = i / 8, part = i % 8;
    const bool valid = work.token + token < args.m && step + part / 2 < work.depth_end;
    const Half* from = args.x + static_cast<int64_t>(work.token + token) * args.k + step * kTileDepth + part * 8;
    CopyAsync16(stage + kRowTiles * kStageTileBytes + TokenPlace(token, part), valid ? from : args.x, valid);
  }
}

// A lane's fragment of one k step of a row tile in a stage.
__device__ inline FragmentA LoadStageA(uint32_t stage, int tile, int step, int lane) {
  FragmentA a;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a.x[0]), "=r"(a.x[1]), "=r"(a.x[2]), "=r"(a.x[3])
               : "r"(stage + tile * kStageTileBytes + step * kTileSize * 2 + lane * 16));
  return a;
}

// Leaves a block's sums of one chunk, kFragments a thread, where the last block of the tile finds them; true in that block,
// with the totals in `sums`.
template <int kFragments, int kThreads>
__device__ inline bool FoldChunks(const MatmulArgs& args, FragmentC (&sums)[kFragments]) {
  const int chunks = gridDim.z, tile = blockIdx.y * gridDim.x + blockIdx.x;
  float4* partials = reinterpret_cast<float4*>(args.workspace) + static_cast<int64_t>(tile) * chunks * kFragments * kThreads;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    __stcg(partials + (static_cast<int64_t>(blockIdx.z) * kFragments + f) * kThreads + threadIdx.x,
           make_float4(sums[f].x[0], sums[f].x[1], sums[f].x[2], sums[f].x[3]));
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
  for (int chunk = 0; chunk < chunks; ++chunk) {
    float4 parts[kFragments];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      parts[f] = __ldcg(partials + (static_cast<int64_t>(chunk) * kFragments + f) * kThreads + threadIdx.x);
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const float part[4] = {parts[f].x, parts[f].y, parts[f].z, parts[f].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[f].x[i] = chunk == 0 ? part[i] : __fadd_rn(sums[f].x[i], part[i]);
    }
  }
  return true;
}

// A chunk's sums come to the totals, which start at kNoTotal: what is added to it stays as it is.
inline constexpr float kNoTotal = -0.0f;

__device__ inline void AddChunk(FragmentC& total, FragmentC& sum) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    total.x[i] = __fadd_rn(total.x[i], sum.x[i]);
    sum.x[i] = 0.0f;
  }
}

}  // namespace ridge::kernels::cuda
