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
#include "kernels/cuda/sampling_row.cuh"

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
// in that block, with the totals in `sums`. `sync` is a barrier of the kThreads first threads of the block,
// which all call this.
template <int kFragments, int kThreads, typename Sync>
__device__ inline bool FoldChunks(const MatmulArgs& args, FragmentC (&sums)[kFragments], const Sync& sync) {
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
  sync();
  if (threadIdx.x == 0) {
    last = atomicAdd(args.counters + tile, 1) == chunks - 1;
    if (last) args.counters[tile] = 0;
  }
  sync();
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

// SwiGLU's outputs of a warp's fragment: 16 rows of W are gate and up of 8 columns. Transposed, so that a
// lane has neighbouring columns of one token.
__device__ inline void WriteGated(const MatmulArgs& args, int token, int row, const FragmentC& sum) {
  const __half2 pair =
      SaturateToHalf2(SiluMul(sum.x[0], sum.x[2]), SiluMul(sum.x[1], sum.x[3]), args.saturations);
  const uint32_t gated = Transpose8x8(*reinterpret_cast<const uint32_t*>(&pair));
  const int lane = threadIdx.x % kWarpThreads;
  token += lane / 4 - lane % 4 * 2;
  if (token >= args.m || row >= args.n) return;
  *reinterpret_cast<uint32_t*>(args.gated + static_cast<int64_t>(token) * (args.n / 2) + row / 16 * 8 +
                               lane % 4 * 2) = gated;
}

// Queries, keys and values of kCount fragments of one row, all their loads together.
template <int kCount, typename TokenOf>
__device__ inline void WriteRopeFragments(const MatmulArgs& args, const FragmentC* sums, int row,
                                          const TokenOf& token_of) {
  if (row >= args.n) return;
  const float bias_low = args.bias == nullptr ? 0.0f : args.bias[row];
  const float bias_high = args.bias == nullptr ? 0.0f : args.bias[row + 8];
  int tokens[2 * kCount];
  float low[2 * kCount], high[2 * kCount];
#pragma unroll
  for (int j = 0; j < 2 * kCount; ++j) {
    tokens[j] = token_of(j / 2) + j % 2;
    low[j] = sums[j / 2].x[j % 2];
    high[j] = sums[j / 2].x[j % 2 + 2];
    if (args.bias != nullptr) {
      low[j] = __fadd_rn(low[j], bias_low);
      high[j] = __fadd_rn(high[j], bias_high);
    }
  }
  WriteRopeKv(args.rope, args.m, row, tokens, low, high);
}

// Takes a warp's tile into the block's best candidates, one a token.
template <int kTokenTiles>
__device__ inline void TakeBest(const FragmentC (&sums)[kTokenTiles], int row, int n, int lane,
                                unsigned long long* best) {
#pragma unroll
  for (int f = 0; f < 2 * kTokenTiles; ++f) {
    const int token = f / 2 * 8 + lane % 4 * 2 + f % 2;
    const float low = sums[f / 2].x[f % 2], high = sums[f / 2].x[f % 2 + 2];
    unsigned long long candidate = max(row < n ? PackCandidate(low, row) : kNoCandidate,
                                       row + 8 < n ? PackCandidate(high, row + 8) : kNoCandidate);
    if (!__any_sync(0xFFFFFFFFu, candidate > best[token])) continue;  // soon the rule
#pragma unroll
    for (int width = 4; width < kWarpThreads; width *= 2)
      candidate = max(candidate, __shfl_xor_sync(0xFFFFFFFFu, candidate, width));
    if (lane < 4) atomicMax(best + token, candidate);
  }
}

// Writes a warp's finished sums; `row_of(f)` and `token_of(f)` say where a lane's fragment f begins, of which
// kTokenTiles in a row have the same row.
template <int kTokenTiles, int kFragments, typename RowOf, typename TokenOf>
__device__ inline void WriteFragments(const MatmulArgs& args, FragmentC (&sums)[kFragments],
                                      const RowOf& row_of, const TokenOf& token_of) {
  if (args.output == MatmulOutput::kSwiGlu && args.bias == nullptr) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) WriteGated(args, token_of(f), row_of(f), sums[f]);
    return;
  }
  if (args.output == MatmulOutput::kRopeKv) {
    constexpr int kCount = kTokenTiles < 4 ? kTokenTiles : 4;
#pragma unroll
    for (int f = 0; f < kFragments; f += kCount) {
      WriteRopeFragments<kCount>(args, sums + f, row_of(f), [&](int i) { return token_of(f + i); });
    }
    return;
  }
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

#if __CUDA_ARCH__ >= 900
// Every block of a cluster adds its share of the fragments, from the shared memory of all, and writes them.
template <int kFragments, int kThreads, typename RowOf, typename TokenOf>
__device__ inline void FoldInCluster(const MatmulArgs& args, unsigned char* shared,
                                     const FragmentC (&sums)[kFragments], const RowOf& row_of,
                                     const TokenOf& token_of) {
  constexpr int kWarps = kThreads / kWarpThreads, kMaxChunks = 8;
  WaitForCopies<0>();
  __syncthreads();  // nobody reads the ring any more
  float4* place = reinterpret_cast<float4*>(shared);
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    place[f * kThreads + threadIdx.x] = make_float4(sums[f].x[0], sums[f].x[1], sums[f].x[2], sums[f].x[3]);
  }
  SyncCluster();
  const int chunks = gridDim.z, lane = threadIdx.x % kWarpThreads;
  for (int unit = blockIdx.z * kWarps + threadIdx.x / kWarpThreads; unit < kFragments * kWarps;
       unit += chunks * kWarps) {
    const int f = unit / kWarps, thread = unit % kWarps * kWarpThreads + lane;
    const uint32_t address = SharedAddress(place + f * kThreads + thread);
    float4 parts[kMaxChunks];
#pragma unroll
    for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
      if (chunk < chunks) parts[chunk] = LoadFromCluster(address, chunk);
    }
    FragmentC total[1] = {{parts[0].x, parts[0].y, parts[0].z, parts[0].w}};
#pragma unroll
    for (int chunk = 1; chunk < kMaxChunks; ++chunk) {
      if (chunk >= chunks) break;
      total[0].x[0] = __fadd_rn(total[0].x[0], parts[chunk].x);
      total[0].x[1] = __fadd_rn(total[0].x[1], parts[chunk].y);
      total[0].x[2] = __fadd_rn(total[0].x[2], parts[chunk].z);
      total[0].x[3] = __fadd_rn(total[0].x[3], parts[chunk].w);
    }
    WriteFragments<1>(
        args, total, [&](int) { return row_of(f, thread); }, [&](int) { return token_of(f, thread); });
  }
  SyncCluster();  // others still read here
}
#endif

// The end of a block that has the sums of one chunk: adds those of all chunks of its tile and writes them, as
// MatmulPlan::cluster says. `row_of(f, thread)` and `token_of(f, thread)` say where a thread's fragment f
// begins.
template <int kTokenTiles, int kFragments, int kThreads, typename RowOf, typename TokenOf>
__device__ inline void FoldAndWrite(const MatmulArgs& args, [[maybe_unused]] unsigned char* shared,
                                    FragmentC (&sums)[kFragments], const RowOf& row_of,
                                    const TokenOf& token_of) {
#if __CUDA_ARCH__ >= 900
  if (ClusterDepth() > 1) return FoldInCluster<kFragments, kThreads>(args, shared, sums, row_of, token_of);
#endif
  if (!FoldChunks<kFragments, kThreads>(args, sums, [] { __syncthreads(); })) return;
  WriteFragments<kTokenTiles>(
      args, sums, [&](int f) { return row_of(f, threadIdx.x); },
      [&](int f) { return token_of(f, threadIdx.x); });
}

}  // namespace ridge::kernels::cuda
