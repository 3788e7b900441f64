// How the kernels of a batch of decode rows write a warp's sums: a row tile of W and all tokens.
#pragma once

#include "kernels/cuda/matmul_stage.cuh"

namespace ridge::kernels::cuda {

// A warp's sums of one chunk to workspace [chunk][m][n]; those of fragment f are of tokens from first_token +
// 8 f on.
template <int kTokenTiles>
__device__ inline void WritePartials(const MatmulArgs& args, const FragmentC (&sums)[kTokenTiles], int chunk,
                                     int row, int first_token, int lane) {
  float* to = args.workspace + static_cast<int64_t>(chunk) * args.m * args.n + row;
#pragma unroll
  for (int f = 0; f < kTokenTiles; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + f * 8 + lane % 4 * 2 + i % 2;
      if (token < args.m && row + i / 2 * 8 < args.n)
        to[static_cast<int64_t>(token) * args.n + i / 2 * 8] = sums[f].x[i];
    }
  }
}

// Fragment after fragment by the same code: it runs once, and fetching it takes longer than running it.
template <int kTokenTiles>
__device__ inline void WriteGatedRow(const MatmulArgs& args, const FragmentC (&sums)[kTokenTiles], int row,
                                     int lane) {
#pragma unroll 1
  for (int f = 0; f < kTokenTiles; ++f) {
    FragmentC sum;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      if (i == f) sum = sums[i];
    }
    WriteGated(args, f * 8 + lane % 4 * 2, row, sum);
  }
}

// The same for kTogether fragments side by side.
template <int kTokenTiles>
__device__ inline void WriteGatedTogether(const MatmulArgs& args, const FragmentC (&sums)[kTokenTiles],
                                          int row, int lane) {
  constexpr int kTogether = kTokenTiles < 4 ? kTokenTiles : 4;
#pragma unroll
  for (int first = 0; first < kTokenTiles; first += kTogether) {
    float gates[2 * kTogether], ups[2 * kTogether], out[2 * kTogether];
#pragma unroll
    for (int i = 0; i < 2 * kTogether; ++i) {
      gates[i] = sums[first + i / 2].x[i % 2];
      ups[i] = sums[first + i / 2].x[i % 2 + 2];
    }
    SiluMulAll(gates, ups, out);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const __half2 pair = SaturateToHalf2(out[2 * i], out[2 * i + 1], args.saturations);
      const uint32_t gated = Transpose8x8(*reinterpret_cast<const uint32_t*>(&pair));
      const int token = (first + i) * 8 + lane / 4;
      if (token >= args.m) continue;
      *reinterpret_cast<uint32_t*>(args.gated + static_cast<int64_t>(token) * (args.n / 2) + row / 16 * 8 +
                                   lane % 4 * 2) = gated;
    }
  }
}

}  // namespace ridge::kernels::cuda
