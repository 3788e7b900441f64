#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

// Once, not for each instruction set.
#ifndef RIDGE_KERNELS_CPU_MATMUL_BLOCKS_
#define RIDGE_KERNELS_CPU_MATMUL_BLOCKS_
namespace ridge::kernels::cpu {

// Rows of x that are multiplied with all of a thread's panels before the next ones: 1 MiB, half of a usual
// second-level cache.
constexpr int64_t BlockRows(int64_t k) {
  return std::clamp<int64_t>((int64_t{1} << 18) / k, 24, 480);
}

constexpr int64_t kLineFloats = 64 / sizeof(float);

// The first address from `at` on that begins a cache line: a register that spans two lines loads at half
// speed.
inline float* AlignToLine(float* at) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(at) + 63) / 64 * 64);
}

}  // namespace ridge::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

// A tile's rows of x and registers of outputs: as many accumulators as leave room for operands, 24 of 32
// registers or 12 of 16.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
constexpr int kTileParts = kLanes == 4 ? 4 : 2;
constexpr int kPanelParts = kPanelWidth / kLanes;

// How far ahead of its use a line of weights is asked for. The hardware's own prefetcher stops at every 4
// KiB.
constexpr int64_t kPrefetchLines = 64;

HWY_INLINE FloatVec LoadWeights(const Half* from) {
  return LoadHalf(from);
}
HWY_INLINE FloatVec LoadWeights(const float* from) {
  return hn::LoadU(kFloat, from);
}

// One chunk of K, some rows, one panel.
template <class Weight>
struct ChunkArgs {
  const float* x;  // [rows][x_stride]
  int64_t x_stride;
  const Weight* w;  // [length][kPanelWidth]
  int64_t length;
  float* sums;  // [rows][kPanelWidth]
  bool first;   // sums are written, else added to
};

// kRows rows and kNumParts registers of outputs of a chunk.
template <int kRows, int kNumParts, class Weight>
HWY_INLINE void ChunkPart(const ChunkArgs<Weight>& args, int64_t column) {
  const Weight* w = args.w + column;
  FloatVec acc[kRows][kNumParts];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) acc[row][part] = hn::Zero(kFloat);
  }
  for (int64_t k = 0; k < args.length; ++k, w += kPanelWidth) {
    if (sizeof(Weight) == sizeof(Half)) hwy::Prefetch(w + kPrefetchLines * kPanelWidth);
    FloatVec weights[kNumParts];
    for (int part = 0; part < kNumParts; ++part) weights[part] = LoadWeights(w + part * kLanes);
    for (int row = 0; row < kRows; ++row) {
      const FloatVec value = hn::Set(kFloat, args.x[row * args.x_stride + k]);
      for (int part = 0; part < kNumParts; ++part) {
        acc[row][part] = hn::MulAdd(weights[part], value, acc[row][part]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) {
      float* sum = args.sums + row * kPanelWidth + column + part * kLanes;
      hn::StoreU(args.first ? acc[row][part] : hn::Add(hn::LoadU(kFloat, sum), acc[row][part]), kFloat, sum);
    }
  }
}

// kRows rows of a chunk and all of a panel; few rows take it in one pass.
template <int kRows, class Weight>
void ChunkTile(const ChunkArgs<Weight>& args) {
  constexpr bool kWhole = kRows * kPanelParts <= kTileRows * kTileParts;
  constexpr int kNumParts = kWhole ? kPanelParts : kTileParts;
  for (int column = 0; column < kPanelWidth; column += kNumParts * kLanes) {
    ChunkPart<kRows, kNumParts>(args, column);
  }
}

template <class Weight>
using ChunkFunction = void (*)(const ChunkArgs<Weight>&);

template <class Weight, int... kIndices>
constexpr std::array<ChunkFunction<Weight>, kTileRows> MakeTiles(std::integer_sequence<int, kIndices...>) {
  return {&ChunkTile<kIndices + 1, Weight>...};
}

// The function for 1, 2, .. kTileRows rows.
template <class Weight>
constexpr auto kTiles = MakeTiles<Weight>(std::make_integer_sequence<int, kTileRows>());

// Adds bias and residual to a panel's sums and writes what lies within n.
HWY_INLINE void Finish(const MatmulArgs& args, int64_t row, int64_t rows, int64_t panel, const float* sums) {
  const int64_t begin = panel * kPanelWidth;
  const int64_t width = std::min<int64_t>(kPanelWidth, args.n - begin);
  for (int64_t r = 0; r < rows; ++r, sums += kPanelWidth) {
    float* y = args.y + (row + r) * args.y_stride + begin;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      FloatVec value = hn::LoadU(kFloat, sums + i);
      if (args.bias != nullptr) value = hn::Add(value, hn::LoadU(kFloat, args.bias + begin + i));
      if (args.accumulate) value = hn::Add(hn::LoadU(kFloat, y + i), value);
      hn::StoreU(value, kFloat, y + i);
    }
    for (; i < width; ++i) {
      float value = sums[i];
      if (args.bias != nullptr) value += args.bias[begin + i];
      y[i] = args.accumulate ? y[i] + value : value;
    }
  }
}

// A tile of rows and one panel: its weights come from memory, and each is used at once.
void StreamPanel(const MatmulArgs& args, int64_t panel) {
  HWY_ALIGN float sums[kTileRows * kPanelWidth];
  const Half* w = args.w + panel * args.k * kPanelWidth;
  const int64_t chunk = DotChunk(args.k);
  for (int64_t k = 0; k < args.k; k += chunk) {
    kTiles<Half>[args.m - 1](
        {args.x + k, args.k, w + k * kPanelWidth, std::min(chunk, args.k - k), sums, k == 0});
  }
  Finish(args, 0, args.m, panel, sums);
}

// Panels that one row reads side by side: one panel has too few chains to hide a multiply-add's latency, and
// memory gives more to several streams than to one. Four need no prefetch but the hardware's.
constexpr int kRowPanels = kPanelParts == 2 ? 4 : 2;

// One row and kRowPanels panels.
void StreamRow(const MatmulArgs& args, int64_t panel) {
  constexpr int kNumParts = kRowPanels * kPanelParts;
  HWY_ALIGN float sums[kNumParts * kLanes];
  const int64_t chunk = DotChunk(args.k);
  for (int64_t begin = 0; begin < args.k; begin += chunk) {
    const Half* w = args.w + (panel * args.k + begin) * kPanelWidth;
    const int64_t length = std::min(chunk, args.k - begin);
    FloatVec acc[kNumParts];
    for (int part = 0; part < kNumParts; ++part) acc[part] = hn::Zero(kFloat);
    for (int64_t k = 0; k < length; ++k, w += kPanelWidth) {
      const FloatVec value = hn::Set(kFloat, args.x[begin + k]);
      for (int part = 0; part < kNumParts; ++part) {
        const Half* at = w + part / kPanelParts * args.k * kPanelWidth + part % kPanelParts * kLanes;
        if (kRowPanels < 4 && part % kPanelParts == 0) hwy::Prefetch(at + kPrefetchLines * kPanelWidth);
        acc[part] = hn::MulAdd(LoadHalf(at), value, acc[part]);
      }
    }
    for (int part = 0; part < kNumParts; ++part) {
      float* sum = sums + part * kLanes;
      hn::StoreU(begin == 0 ? acc[part] : hn::Add(hn::LoadU(kFloat, sum), acc[part]), kFloat, sum);
    }
  }
  for (int p = 0; p < kRowPanels; ++p) Finish(args, 0, 1, panel + p, sums + p * kPanelWidth);
}

// Weights as floats; asks for the same length that follows, which arrives while these are used.
HWY_INLINE void Convert(const Half* from, int64_t length, float* to) {
  const int64_t size = length * kPanelWidth;
  for (int64_t i = 0; i < size; i += kPanelWidth) {
    hwy::Prefetch(from + i + size);
    for (int part = 0; part < kPanelParts; ++part) {
      hn::StoreU(LoadHalf(from + i + part * kLanes), kFloat, to + i + part * kLanes);
    }
  }
}

// More rows than a tile and one panel.
void ReusePanel(const MatmulArgs& args, int64_t row, int64_t rows, int64_t panel, float* scratch) {
  const Half* w = args.w + panel * args.k * kPanelWidth;
  const int64_t chunk = DotChunk(args.k);
  float* weights = AlignToLine(scratch);
  float* sums = weights + chunk * kPanelWidth;
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t k = 0; k < args.k; k += chunk) {
    const int64_t length = std::min(chunk, args.k - k);
    Convert(w + k * kPanelWidth, length, weights);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t begin = rows * tile / tiles, end = rows * (tile + 1) / tiles;
      kTiles<float>[end - begin - 1](
          {args.x + (row + begin) * args.k + k, args.k, weights, length, sums + begin * kPanelWidth, k == 0});
    }
  }
  Finish(args, row, rows, panel, sums);
}

void MatmulTarget(const MatmulArgs& args, int64_t panel_begin, int64_t panel_end, float* scratch) {
  if (args.m == 1) {
    for (; panel_begin + kRowPanels <= panel_end; panel_begin += kRowPanels) StreamRow(args, panel_begin);
  }
  if (args.m <= kTileRows) {
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) StreamPanel(args, panel);
    return;
  }
  const int64_t blocks = (args.m + BlockRows(args.k) - 1) / BlockRows(args.k);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = args.m * block / blocks, rows = args.m * (block + 1) / blocks - row;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      ReusePanel(args, row, rows, panel, scratch);
    }
  }
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {

HWY_EXPORT(MatmulTarget);

int64_t MatmulScratch(int64_t k) {
  return (DotChunk(k) + BlockRows(k)) * kPanelWidth + kLineFloats;
}

void PrefetchPanels(const Half* w, int64_t k, int64_t panel_begin) {
  constexpr int64_t kLines = 64;
  const Half* from = w + panel_begin * k * kPanelWidth;
  for (int64_t line = 0; line < kLines; ++line) hwy::Prefetch(from + line * kPanelWidth);
}

void Matmul(const MatmulArgs& args, int64_t panel_begin, int64_t panel_end, float* scratch) {
  HWY_DYNAMIC_DISPATCH(MatmulTarget)(args, panel_begin, panel_end, scratch);
}

}  // namespace ridge::kernels::cpu
#endif
