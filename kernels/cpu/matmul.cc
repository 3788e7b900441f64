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

// Rows of x that share one pass over a converted panel: 2 * 6 accumulators fill AVX2's registers.
constexpr int kTileRows = 6;
// From this many rows on, converting a panel once beats converting it for every tile.
constexpr int64_t kConvertRows = 8;

// One chunk's sums of kRows rows and kNumPanels panels, added to y (or put there, for the first chunk).
template <int kRows, int kNumPanels, class Weight>
HWY_INLINE void ChunkTile(const float* x, int64_t x_stride, const Weight* w, int64_t panel_stride,
                          int64_t length, bool first, float* sums, int64_t sums_stride) {
  FloatVec acc[kRows][kNumPanels * kParts];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumPanels * kParts; ++part) acc[row][part] = hn::Zero(kFloat);
  }
  for (int64_t k = 0; k < length; ++k) {
    FloatVec weights[kNumPanels * kParts];
    for (int part = 0; part < kNumPanels * kParts; ++part) {
      weights[part] =
          LoadWeights(w + (part / kParts) * panel_stride + k * kPanelWidth + (part % kParts) * kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const FloatVec value = hn::Set(kFloat, x[row * x_stride + k]);
      for (int part = 0; part < kNumPanels * kParts; ++part) {
        acc[row][part] = hn::MulAdd(weights[part], value, acc[row][part]);
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
template <int kRows, int kNumPanels, class Weight>
HWY_INLINE void Tile(const MatmulArgs& args, int64_t row, const Weight* w, float* sums) {
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

template <int kRows, int kNumPanels, class Weight>
HWY_INLINE void RunTile(const MatmulArgs& args, int64_t row, int64_t panel, const Weight* w) {
  HWY_ALIGN float sums[kRows * kNumPanels * kPanelWidth];
  Tile<kRows, kNumPanels>(args, row, w, sums);
  Finish(args, row, kRows, panel, kNumPanels, sums);
}

// All rows of one panel, in tiles of nearly the same height.
template <class Weight>
HWY_INLINE void RunRows(const MatmulArgs& args, int64_t panel, const Weight* w) {
  for (int64_t row = 0; row < args.m;) {
    const int64_t left = args.m - row;
    const int64_t tiles = (left + kTileRows - 1) / kTileRows;
    const int64_t rows = (left + tiles - 1) / tiles;
    switch (rows) {
      case 1:
        RunTile<1, 1>(args, row, panel, w);
        break;
      case 2:
        RunTile<2, 1>(args, row, panel, w);
        break;
      case 3:
        RunTile<3, 1>(args, row, panel, w);
        break;
      case 4:
        RunTile<4, 1>(args, row, panel, w);
        break;
      case 5:
        RunTile<5, 1>(args, row, panel, w);
        break;
      default:
        RunTile<kTileRows, 1>(args, row, panel, w);
    }
    row += rows;
  }
}

// Few rows: weights are converted as they stream by. Several panels at once keep enough chains in flight to
// hide the latency of the multiply-add.
void MatmulFewRows(const MatmulArgs& args, int64_t panel, int64_t panel_end) {
  const int64_t panel_size = args.k * kPanelWidth;
  if (args.m == 1) {
    for (; panel + 4 <= panel_end; panel += 4) RunTile<1, 4>(args, 0, panel, args.w + panel * panel_size);
  } else if (args.m == 2) {
    for (; panel + 2 <= panel_end; panel += 2) RunTile<2, 2>(args, 0, panel, args.w + panel * panel_size);
  } else if (args.m == 3) {
    for (; panel + 2 <= panel_end; panel += 2) RunTile<3, 2>(args, 0, panel, args.w + panel * panel_size);
  }
  for (; panel < panel_end; ++panel) RunRows(args, panel, args.w + panel * panel_size);
}

// Many rows: a panel is converted once.
void MatmulManyRows(const MatmulArgs& args, int64_t panel, int64_t panel_end, std::vector<float>* scratch) {
  const int64_t panel_size = args.k * kPanelWidth;
  if (static_cast<int64_t>(scratch->size()) < panel_size) scratch->resize(panel_size);
  for (; panel < panel_end; ++panel) {
    const Half* w = args.w + panel * panel_size;
    for (int64_t i = 0; i < panel_size; i += kLanes) hn::StoreU(LoadHalf(w + i), kFloat, scratch->data() + i);
    RunRows(args, panel, scratch->data());
  }
}

void MatmulTarget(const MatmulArgs& args, int64_t panel_begin, int64_t panel_end,
                  std::vector<float>* scratch) {
  if (args.m < kConvertRows) {
    MatmulFewRows(args, panel_begin, panel_end);
  } else {
    MatmulManyRows(args, panel_begin, panel_end, scratch);
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

void Matmul(const MatmulArgs& args, int64_t panel_begin, int64_t panel_end, std::vector<float>* scratch) {
  HWY_DYNAMIC_DISPATCH(MatmulTarget)(args, panel_begin, panel_end, scratch);
}

}  // namespace ridge::kernels::cpu
#endif
