// PackRows of matmul.h: a transposition of 16-bit numbers, at the speed of memory. Where rows fill a panel's
// width, blocks of 8 rows and 8 columns are transposed in registers. Plain stores: fresh memory has just been
// zeroed, so that its lines are in the caches.
#include "kernels/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pack_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR  // which has vectors of one number

inline constexpr int64_t kBlock = 8;
static_assert(kPanelWidth % kBlock == 0);

// Column c of the block goes to to[c * kPanelWidth], eight numbers.
HWY_INLINE void TransposeBlock(const Half* rows, int64_t k, Half* to) {
  const hn::FixedTag<uint16_t, 8> tag16;
  const hn::FixedTag<uint32_t, 4> tag32;
  const hn::FixedTag<uint64_t, 2> tag64;
  using Vec = hn::Vec<decltype(tag16)>;
  Vec rows8[8], pairs[8], quads[8];
  for (int i = 0; i < 8; ++i) rows8[i] = hn::LoadU(tag16, rows + i * k);
  // Rows r and r + 1 interleaved: columns 0 to 3, then 4 to 7.
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = hn::InterleaveLower(tag16, rows8[2 * i], rows8[2 * i + 1]);
    pairs[2 * i + 1] = hn::InterleaveUpper(tag16, rows8[2 * i], rows8[2 * i + 1]);
  }
  // Rows r to r + 3: quads[4 h + j] has columns 2 j and 2 j + 1 of row half h.
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < 2; ++j) {
      const auto low = hn::BitCast(tag32, pairs[4 * h + j]), high = hn::BitCast(tag32, pairs[4 * h + 2 + j]);
      quads[4 * h + 2 * j] = hn::BitCast(tag16, hn::InterleaveLower(tag32, low, high));
      quads[4 * h + 2 * j + 1] = hn::BitCast(tag16, hn::InterleaveUpper(tag32, low, high));
    }
  }
  for (int j = 0; j < 4; ++j) {
    const auto low = hn::BitCast(tag64, quads[j]), high = hn::BitCast(tag64, quads[4 + j]);
    hn::StoreU(hn::BitCast(tag16, hn::InterleaveLower(tag64, low, high)), tag16, to + 2 * j * kPanelWidth);
    hn::StoreU(hn::BitCast(tag16, hn::InterleaveUpper(tag64, low, high)), tag16,
               to + (2 * j + 1) * kPanelWidth);
  }
}

// A whole panel: `to` is its first line.
HWY_INLINE void PackPanel(const Half* rows, int64_t k, Half* to) {
  int64_t column = 0;
  for (; column + kBlock <= k; column += kBlock) {
    for (int64_t row = 0; row < kPanelWidth; row += kBlock)
      TransposeBlock(rows + row * k + column, k, to + column * kPanelWidth + row);
  }
  for (; column < k; ++column) {
    for (int64_t row = 0; row < kPanelWidth; ++row) to[column * kPanelWidth + row] = rows[row * k + column];
  }
}

#endif

void PackRowsTarget(const Half* rows, int64_t row_begin, int64_t row_count, int64_t k, Half* packed) {
  for (int64_t row = 0; row < row_count;) {
    const int64_t n = row_begin + row;
    const int64_t lane = n % kPanelWidth;
    Half* panel = packed + n / kPanelWidth * k * kPanelWidth;
#if HWY_TARGET != HWY_SCALAR
    if (lane == 0 && row + kPanelWidth <= row_count) {
      PackPanel(rows + row * k, k, panel);
      row += kPanelWidth;
      continue;
    }
#endif
    for (int64_t column = 0; column < k; ++column)
      panel[column * kPanelWidth + lane] = rows[row * k + column];
    ++row;
  }
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {

HWY_EXPORT(PackRowsTarget);

void PackRows(const Half* rows, int64_t row_begin, int64_t row_count, int64_t k, Half* packed) {
  HWY_DYNAMIC_DISPATCH(PackRowsTarget)(rows, row_begin, row_count, k, packed);
}

}  // namespace ridge::kernels::cpu
#endif
