#include "kernels/cpu/matmul.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

// Rows of x that share one pass over the weights, and panels beside each other: 12 accumulators on AVX2 and
// AVX-512, enough to hide the latency of the multiply-add and few enough for AVX2's 16 registers. Weights are
// converted in every pass: conversion and multiply-add do not compete for the same units.
constexpr int kTileRows = 6;
constexpr int kTilePanels = kParts == 1 ? 2 : 1;

// One chunk's sums of kRows rows and kNumPanels panels, added to y (or put there, for the first chunk).
template <int kRows, int kNumPanels>
HWY_INLINE void ChunkTile(const float* x, int64_t x_stride, const Half* w, int64_t panel_stride,
                          int64_t length, bool first, float* sums, int64_t sums_stride) {
  constexpr int kNumParts = kNumPanels * kParts;
  const auto load_weights = [&](int64_t k, int part) HWY_ATTR {
    return LoadHalf(w + (part / kParts) * panel_stride + k * kPanelWidth + (part % kParts) * kLanes);
  };
  const auto load_value = [&](int64_t k, int row) HWY_ATTR { return hn::Set(kFloat, x[row * x_stride + k]); };
  FloatVec acc[kRows][kNumParts];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) acc[row][part] = hn::Zero(kFloat);
  }
  // What there is less of is held in registers, the rest passes by.
  for (int64_t k = 0; k < length; ++k) {
    if constexpr (kRows < kNumParts) {
      FloatVec values[kRows];
      for (int row = 0; row < kRows; ++row) values[row] = load_value(k, row);
      for (int part = 0; part < kNumParts; ++part) {
        const FloatVec weights = load_weights(k, part);
        for (int row = 0; row < kRows; ++row) {
          acc[row][part] = hn::MulAdd(weights, values[row], acc[row][part]);
        }
      }
    } else {
      FloatVec weights[kNumParts];
      for (int part = 0; part < kNumParts; ++part) weights[part] = load_weights(k, part);
      for (int row = 0; row < kRows; ++row) {
        const FloatVec value = load_value(k, row);
        for (int part = 0; part < kNumParts; ++part) {
          acc[row][part] = hn::MulAdd(weights[part], value, acc[row][part]);
        }
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumPanels * kParts; ++part) {
      float* sum = sums + row * sums_stride + part * kLanes;
      hn::StoreU(first ? acc[row][part] : hn::Add(hn::LoadU(kFloat, sum), acc[row][part]), kFloat, sum);
    }
  }
}

// Sums over all chunks for kRows rows and kNumPanels panels into [kRows][kNumPanels * 16].
template <int kRows, int kNumPanels>
HWY_INLINE void Tile(const MatmulArgs& args, int64_t row, const Half* w, float* sums) {
  const int64_t chunk = DotChunk(args.k);
  for (int64_t k = 0; k < args.k; k += chunk) {
    ChunkTile<kRows, kNumPanels>(args.x + row * args.k + k, args.k, w + k * kPanelWidth, args.k * kPanelWidth,
                                 std::min(chunk, args.k - k), k == 0, sums, kNumPanels * kPanelWidth);
  }
}

// Adds bias and residual and writes what lies within n.
HWY_INLINE void Finish(const MatmulArgs& args, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                       const float* sums) {
  const int64_t begin = panel * kPanelWidth;
  const int64_t width = std::min(panels * kPanelWidth, args.n - begin);
  for (int64_t r = 0; r < rows; ++r) {
    float* y = args.y + (row + r) * args.y_stride + begin;
    const float* sum = sums + r * panels * kPanelWidth;
    for (int64_t i = 0; i < width; ++i) {
      float value = sum[i];
      if (args.bias != nullptr) value += args.bias[begin + i];
      y[i] = args.accumulate ? y[i] + value : value;
    }
  }
}

template <int kRows, int kNumPanels>
HWY_INLINE void RunTile(const MatmulArgs& args, int64_t row, int64_t panel, const Half* w) {
  HWY_ALIGN float sums[kRows * kNumPanels * kPanelWidth];
  Tile<kRows, kNumPanels>(args, row, w, sums);
  Finish(args, row, kRows, panel, kNumPanels, sums);
}

// All rows of kNumPanels panels, in tiles of nearly the same height.
template <int kNumPanels>
HWY_INLINE void RunRows(const MatmulArgs& args, int64_t panel) {
  const Half* w = args.w + panel * args.k * kPanelWidth;
  for (int64_t row = 0; row < args.m;) {
    const int64_t left = args.m - row;
    const int64_t tiles = (left + kTileRows - 1) / kTileRows;
    const int64_t rows = (left + tiles - 1) / tiles;
    switch (rows) {
      case 1:
        RunTile<1, kNumPanels>(args, row, panel, w);
        break;
      case 2:
        RunTile<2, kNumPanels>(args, row, panel, w);
        break;
      case 3:
        RunTile<3, kNumPanels>(args, row, panel, w);
        break;
      case 4:
        RunTile<4, kNumPanels>(args, row, panel, w);
        break;
      case 5:
        RunTile<5, kNumPanels>(args, row, panel, w);
        break;
      default:
        RunTile<kTileRows, kNumPanels>(args, row, panel, w);
    }
    row += rows;
  }
}

void MatmulTarget(const MatmulArgs& args, int64_t panel, int64_t panel_end) {
  // Few rows need more panels at once for as many chains.
  const int64_t panel_size = args.k * kPanelWidth;
  if (args.m == 1) {
    for (; panel + 4 * kTilePanels <= panel_end; panel += 4 * kTilePanels) {
      RunTile<1, 4 * kTilePanels>(args, 0, panel, args.w + panel * panel_size);
    }
  } else if (args.m <= 3) {
    for (; panel + 2 * kTilePanels <= panel_end; panel += 2 * kTilePanels) {
      RunRows<2 * kTilePanels>(args, panel);
    }
  }
  for (; panel + kTilePanels <= panel_end; panel += kTilePanels) RunRows<kTilePanels>(args, panel);
  if constexpr (kTilePanels > 1) {
    for (; panel < panel_end; ++panel) RunRows<1>(args, panel);
  }
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {

HWY_EXPORT(MatmulTarget);

void PackRows(const Half* rows, int64_t row_begin, int64_t row_count, int64_t k, Half* packed) {
  for (int64_t row = 0; row < row_count; ++row) {
    const int64_t n = row_begin + row;
    Half* to = packed + (n / kPanelWidth) * k * kPanelWidth + n % kPanelWidth;
    const Half* from = rows + row * k;
    for (int64_t i = 0; i < k; ++i) to[i * kPanelWidth] = from[i];
  }
}

void Matmul(const MatmulArgs& args, int64_t panel_begin, int64_t panel_end) {
  HWY_DYNAMIC_DISPATCH(MatmulTarget)(args, panel_begin, panel_end);
}

}  // namespace ridge::kernels::cpu
#endif
