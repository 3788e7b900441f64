// What happens to a tile of finished sums in shared memory, [token][128 rows of W]: bias, residual, SwiGLU,
// RoPE with KV write. By warps that do nothing else, neighbouring lanes at neighbouring outputs. Same bits as
// matmul_output.cuh.
#pragma once

#include "kernels/cuda/matmul_output.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {

inline constexpr int kTileOutputRows = 128;
inline constexpr int kTileOutputWarps = 4;

// Where a sum stands: the fragments of a warp, rows g and tokens 2 t, meet no bank twice, nor do neighbouring
// rows.
__device__ inline int TilePlace(int token, int row) {
  return token * kTileOutputRows + (row ^ (token / 2 % 4 * 8));
}

// A token of the tile, as RoPE's epilogue needs it.
struct TileToken {
  int position;
  int block;  // of the KV pool; negative: none
};

struct TileOutput {
  const float* sums;
  TileToken* tokens;  // of the tile, kRopeKv's alone; filled by FindTokens
  int row, token;     // first of the tile
  int warp, lane;     // among those that write it

  // Tokens that a warp takes at a time: tokens warp * kTogether + i of every kTileOutputWarps * kTogether.
  static constexpr int kTogether = 4;

  template <typename Body>
  __device__ void ForTokens(int num_tokens, const Body& body) const {
#pragma unroll 1
    for (int first = warp * kTogether; first < num_tokens; first += kTileOutputWarps * kTogether) body(first);
  }
};

// y = sums (+ bias), or y += that. A lane has every 32nd row. `await` returns when the sums are there; what y
// holds is asked for before, and then always four tokens ahead.
template <typename Await>
__device__ inline void WriteTileSums(const MatmulArgs& args, const TileOutput& tile, int num_tokens,
                                     const Await& await) {
  constexpr int kRows = kTileOutputRows / kWarpThreads, kTogether = TileOutput::kTogether;
  const bool adds = args.output == MatmulOutput::kResidual;
  float bias[kRows] = {};
  bool has_row[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = tile.row + tile.lane + i * kWarpThreads;
    has_row[i] = row < args.n;
    if (args.bias != nullptr && has_row[i]) bias[i] = args.bias[row];
  }
  float* const rows = args.y + tile.token * args.y_stride + tile.row + tile.lane;
  float before[kTogether][kRows] = {};
  const auto ask = [&](int first) {
    if (!adds) return;
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const float* y = rows + (first + t) * args.y_stride;
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        before[t][i] = first + t < num_tokens && has_row[i] ? y[i * kWarpThreads] : 0.0f;
    }
  };
  ask(tile.warp * kTogether);
  await();
  tile.ForTokens(num_tokens, [&](int first) {
    float values[kTogether][kRows];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        values[t][i] = tile.sums[TilePlace(first + t, tile.lane + i * kWarpThreads)];
    }
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (args.bias != nullptr) values[t][i] = __fadd_rn(values[t][i], bias[i]);
        if (adds) values[t][i] = __fadd_rn(before[t][i], values[t][i]);
      }
    }
    ask(first + kTileOutputWarps * kTogether);
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      float* y = rows + (first + t) * args.y_stride;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (first + t < num_tokens && has_row[i]) y[i * kWarpThreads] = values[t][i];
      }
    }
  });
}

// Values as fp16, two at a time; those that do not fit saturate and are counted.
template <int kCount>
__device__ inline void SaturateAll(float (&values)[kCount], unsigned long long* saturations) {
  float largest = 0.0f;
#pragma unroll
  for (float value : values) largest = fmaxf(largest, fabsf(value));
  if (largest <= kHalfMax) return;
#pragma unroll
  for (float& value : values) value = __half2float(SaturateToHalf(value, saturations));
}

// The pairs of rows that a lane has in a tile's token: rows `low`, `low` + 1 of one row tile, and those 8
// behind.
__device__ inline int PairRow(int lane) {
  return lane / 4 * kTileRows + lane % 4 * 2;
}

__device__ inline float2 LoadPair(const TileOutput& tile, int token, int row) {
  return *reinterpret_cast<const float2*>(tile.sums + TilePlace(token, row));
}

// Zeros without a bias.
__device__ inline float2 LoadBias(const float* bias, int row) {
  return bias == nullptr ? float2{0.0f, 0.0f} : float2{bias[row], bias[row + 1]};
}

template <typename Await>
__device__ inline void WriteTileGated(const MatmulArgs& args, const TileOutput& tile, int num_tokens,
                                      const Await& await) {
  constexpr int kTogether = TileOutput::kTogether;
  const int low = PairRow(tile.lane), row = tile.row + low;
  Half* const channels =
      args.gated + static_cast<int64_t>(tile.token) * (args.n / 2) + row / kTileRows * 8 + row % 8;
  await();
  if (row >= args.n) return;  // n is of whole row tiles
  const bool has_bias = args.bias != nullptr;
  const float2 gate_bias = LoadBias(args.bias, row), up_bias = LoadBias(args.bias, row + 8);
  tile.ForTokens(num_tokens, [&](int first) {
    float gates[2 * kTogether], ups[2 * kTogether], gated[2 * kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      // Beyond the last token: the last one again, as good as any.
      const int token = min(first + t, num_tokens - 1);
      const float2 gate = LoadPair(tile, token, low), up = LoadPair(tile, token, low + 8);
      gates[2 * t] = has_bias ? __fadd_rn(gate.x, gate_bias.x) : gate.x;
      gates[2 * t + 1] = has_bias ? __fadd_rn(gate.y, gate_bias.y) : gate.y;
      ups[2 * t] = has_bias ? __fadd_rn(up.x, up_bias.x) : up.x;
      ups[2 * t + 1] = has_bias ? __fadd_rn(up.y, up_bias.y) : up.y;
    }
    SiluMulAll(gates, ups, gated);
    if (first + kTogether > num_tokens) {
#pragma unroll
      for (int i = 0; i < 2 * kTogether; ++i) gated[i] = first + i / 2 < num_tokens ? gated[i] : 0.0f;
    }
    SaturateAll(gated, args.saturations);
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      if (first + t < num_tokens)
        *reinterpret_cast<__half2*>(channels + static_cast<int64_t>(first + t) * (args.n / 2)) =
            __floats2half2_rn(gated[2 * t], gated[2 * t + 1]);
    }
  });
}

// Before the sums are there.
__device__ inline void FindTokens(const RopeKvArgs& rope, const TileOutput& tile, int num_tokens) {
  for (int i = tile.warp * kWarpThreads + tile.lane; i < num_tokens; i += kTileOutputWarps * kWarpThreads) {
    const int token = tile.token + i, slot = rope.slots[token], position = rope.positions[token];
    tile.tokens[i] = {
        position,
        slot < 0
            ? -1
            : rope.block_tables[static_cast<int64_t>(slot) * rope.table_stride + position / kKvBlockTokens]};
  }
}

template <typename Await>
__device__ inline void WriteTileRopeKv(const MatmulArgs& args, const TileOutput& tile, int num_tokens,
                                       const Await& await) {
  constexpr int kTogether = TileOutput::kTogether;
  const RopeKvArgs& rope = args.rope;
  const int low = PairRow(tile.lane), row = tile.row + low;
  const int d = rope.head_dim, half = d / 2, head = row / d, i = row % d / kTileRows * 8 + row % 8;
  const bool is_query = head < rope.num_heads, rotated = head < rope.num_heads + rope.num_kv_heads;
  const int kv_head = is_query ? 0 : (head - rope.num_heads) % rope.num_kv_heads;
  Half* const heads = is_query ? rope.q + (static_cast<int64_t>(tile.token) * rope.num_heads + head) * d + i
                               : rope.kv.pool + (rotated ? rope.kv.key_offset : rope.kv.value_offset) +
                                     static_cast<int64_t>(kv_head) * kKvBlockTokens * d + i;
  await();
  if (row >= args.n) return;
  const float2 bias_low = LoadBias(args.bias, row), bias_high = LoadBias(args.bias, row + 8);
  tile.ForTokens(num_tokens, [&](int first) {
    TileToken tokens[kTogether];
    float values[4 * kTogether];  // of a token: low, low + 1, and those 8 behind
    float2 cosines[kTogether], sines[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) tokens[t] = tile.tokens[min(first + t, num_tokens - 1)];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const int64_t angle = static_cast<int64_t>(tokens[t].position) * half + i;
      cosines[t] = rotated ? *reinterpret_cast<const float2*>(rope.cosines + angle) : float2{};
      sines[t] = rotated ? *reinterpret_cast<const float2*>(rope.sines + angle) : float2{};
    }
    bool stored[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      stored[t] = first + t < num_tokens && (is_query || tokens[t].block >= 0);
      const int token = min(first + t, num_tokens - 1);
      float2 x = LoadPair(tile, token, low), y = LoadPair(tile, token, low + 8);
      if (args.bias != nullptr) {
        x = make_float2(__fadd_rn(x.x, bias_low.x), __fadd_rn(x.y, bias_low.y));
        y = make_float2(__fadd_rn(y.x, bias_high.x), __fadd_rn(y.y, bias_high.y));
      }
      if (rotated) {
        Rotate(cosines[t].x, sines[t].x, &x.x, &y.x);
        Rotate(cosines[t].y, sines[t].y, &x.y, &y.y);
      }
      values[4 * t] = stored[t] ? x.x : 0.0f;
      values[4 * t + 1] = stored[t] ? x.y : 0.0f;
      values[4 * t + 2] = stored[t] ? y.x : 0.0f;
      values[4 * t + 3] = stored[t] ? y.y : 0.0f;
    }
    SaturateAll(values, args.saturations);
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      Half* const to = heads + (is_query ? static_cast<int64_t>(first + t) * rope.num_heads * d
                                         : tokens[t].block * rope.kv.block_stride +
                                               tokens[t].position % kKvBlockTokens * d);
      if (stored[t]) {
        *reinterpret_cast<__half2*>(to) = __floats2half2_rn(values[4 * t], values[4 * t + 1]);
        *reinterpret_cast<__half2*>(to + half) = __floats2half2_rn(values[4 * t + 2], values[4 * t + 3]);
      }
    }
  });
}

}  // namespace ridge::kernels::cuda
