// Parts that the matmuls through shared memory have in common: the stages of the ring and the fold of split
// chunks.
//
// A stage holds 64 columns of both operands. W's tiles lie in it as they are packed. Tokens are rows of 128
// bytes whose 16-byte parts are swizzled by row % 8: no bank conflicts for ldmatrix, and the 128-byte swizzle
// of wgmma.
#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {

inline constexpr int kStageDepth = 64;                               // columns
inline constexpr int kStageSteps = kStageDepth / kTileDepth;         // k steps
inline constexpr int kStageTileBytes = kStageSteps * kTileSize * 2;  // of one row tile
inline constexpr int kTokenBytes = kStageDepth * 2;

// What a block computes.
struct BlockWork {
  int row_tile;                // first
  int num_tiles;               // row tiles of W
  int token;                   // first
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

// Brings stages to shared memory: kRowTiles row tiles of W, then kTokens tokens. What a thread copies differs
// from stage to stage by a constant distance alone, and from pass to pass by another.
template <int kRowTiles, int kTokens, int kThreads>
class StageCopier {
 public:
  __device__ StageCopier(const MatmulArgs& args, const BlockWork& work) {
    static_assert(kThreads % kTileUnits == 0 && kRowTiles % kTilesPerPass == 0 &&
                  kTokens % kTokensPerPass == 0);
    const int depth = args.k / kTileDepth;
    const int tile = work.row_tile + threadIdx.x / kTileUnits, unit = threadIdx.x % kTileUnits;
    const int token = work.token + threadIdx.x / kTokenUnits, part = threadIdx.x % kTokenUnits;
    weights_ = reinterpret_cast<const uint4*>(args.w) +
               (int64_t{tile} * depth + work.depth_begin) * kWarpThreads + unit;
    weights_pass_ = int64_t{kTilesPerPass} * depth * kWarpThreads;
    tiles_left_ = work.num_tiles - tile;
    weight_step_ = unit / kWarpThreads;
    tokens_ = reinterpret_cast<const uint4*>(args.x + static_cast<int64_t>(token) * args.k +
                                             work.depth_begin * kTileDepth) +
              part;
    tokens_pass_ = int64_t{kTokensPerPass} * (args.k / 8);
    tokens_left_ = args.m - token;
    token_step_ = part / 2;
    token_place_ = kRowTiles * kStageTileBytes + TokenPlace(threadIdx.x / kTokenUnits, part);
    steps_ = work.depth_end - work.depth_begin;
  }

  __device__ void CopyWeights(int index, uint32_t stage) const {
    const bool valid = index * kStageSteps + weight_step_ < steps_;
    const uint4* from = weights_ + index * (kStageSteps * kWarpThreads);
#pragma unroll
    for (int pass = 0; pass < kRowTiles / kTilesPerPass; ++pass) {
      CopyAsync16(stage + (threadIdx.x + pass * kThreads) * 16, from + pass * weights_pass_,
                  valid && pass * kTilesPerPass < tiles_left_);
    }
  }

  __device__ void CopyTokens(int index, uint32_t stage) const {
    const bool valid = index * kStageSteps + token_step_ < steps_;
    const uint4* from = tokens_ + index * (kStageDepth / 8);
#pragma unroll
    for (int pass = 0; pass < kTokens / kTokensPerPass; ++pass) {
      CopyAsync16(stage + token_place_ + pass * (kTokensPerPass * kTokenBytes), from + pass * tokens_pass_,
                  valid && pass * kTokensPerPass < tokens_left_);
    }
  }

 private:
  // 16-byte units of a row tile and of a token in a stage, and how many of each all threads copy in a pass.
  static constexpr int kTileUnits = kStageTileBytes / 16, kTokenUnits = kTokenBytes / 16;
  static constexpr int kTilesPerPass = kThreads / kTileUnits, kTokensPerPass = kThreads / kTokenUnits;
  static_assert(kTokensPerPass % 8 == 0);  // the swizzle is the same in every pass

  const uint4* weights_;
  const uint4* tokens_;
  int64_t weights_pass_, tokens_pass_;
  uint32_t token_place_;
  int tiles_left_, tokens_left_, weight_step_, token_step_, steps_;
};

// A lane's fragment of one k step of a row tile in a stage.
__device__ inline FragmentA LoadStageA(uint32_t stage, int tile, int step, int lane) {
  FragmentA a;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a.x[0]), "=r"(a.x[1]), "=r"(a.x[2]), "=r"(a.x[3])
               : "r"(stage + tile * kStageTileBytes + step * kTileSize * 2 + lane * 16));
  return a;
}

// Leaves a block's sums of one chunk, kFragments a thread, where the last block of the tile finds them; true
// in that block, with the totals in `sums`.
template <int kFragments, int kThreads>
__device__ inline bool FoldChunks(const MatmulArgs& args, FragmentC (&sums)[kFragments]) {
  const int chunks = gridDim.z, tile = blockIdx.y * gridDim.x + blockIdx.x;
  float4* partials =
      reinterpret_cast<float4*>(args.workspace) + static_cast<int64_t>(tile) * chunks * kFragments * kThreads;
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

// Writes a thread's finished sums; `row_of(f)` and `token_of(f)` say where fragment f begins.
template <int kFragments, typename RowOf, typename TokenOf>
__device__ inline void WriteFragments(const MatmulArgs& args, FragmentC (&sums)[kFragments],
                                      const RowOf& row_of, const TokenOf& token_of) {
  if (args.output == MatmulOutput::kResidual && args.bias == nullptr) {
    // All loads go out before the first store.
    float* const y = args.y;
    const auto valid = [&](int f, int i) {
      return token_of(f) + i % 2 < args.m && row_of(f) + i / 2 * 8 < args.n;
    };
    const auto place = [&](int f, int i) {
      return y + (token_of(f) + i % 2) * args.y_stride + row_of(f) + i / 2 * 8;
    };
    float residual[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) residual[f][i] = valid(f, i) ? *place(f, i) : 0.0f;
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (valid(f, i)) *place(f, i) = __fadd_rn(residual[f][i], sums[f].x[i]);
      }
    }
    return;
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    WriteSums(args, token_of(f), row_of(f), sums[f].x[0], sums[f].x[2]);
    WriteSums(args, token_of(f) + 1, row_of(f), sums[f].x[1], sums[f].x[3]);
  }
}

}  // namespace ridge::kernels::cuda
