#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

constexpr int64_t kTileBlocks = kAttentionTile / kKvBlockTokens;
// Accumulators of the two products, as in the matmul: rows times registers.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
constexpr int kTileParts = kLanes == 4 ? 4 : 2;
// Registers that a cache line of fp16 fills.
constexpr int kLineParts = 32 / kLanes;

// A tile of keys. Blocks beyond the last key repeat the last one.
struct KeyTile {
  int64_t begin;
  int64_t count;
  const Half* keys[kTileBlocks];    // [head_dim][16] each
  const Half* values[kTileBlocks];  // [16][head_dim] each
};

KeyTile TileAt(const AttentionArgs& args, int64_t begin, int64_t end) {
  KeyTile tile{begin, std::min<int64_t>(kAttentionTile, end - begin), {}, {}};
  for (int64_t i = 0; i < kTileBlocks; ++i) {
    const int64_t block = std::min(begin / kKvBlockTokens + i, (end - 1) / kKvBlockTokens);
    const Half* base = args.pool + args.block_table[block] * args.block_stride;
    tile.keys[i] = base + args.k_offset;
    tile.values[i] = base + args.v_offset;
  }
  return tile;
}

// Per row and query head: what the chunk has so far. In a partial, [m, l, ..., O]; within a chunk l is still
// in lanes, which have a place of their own.
struct States {
  const AttentionArgs& args;
  float* partials;  // [num_states][PartialStride]
  float* lanes;     // [num_states][16]
  float* scores;    // [num_states][kAttentionTile]; then P

  float& max(int64_t state) const { return partials[state * PartialStride(args.head_dim)]; }
  float* values(int64_t state) const {
    return partials + state * PartialStride(args.head_dim) + kVirtualLanes;
  }
  const float* query(int64_t state) const {
    return args.q + state / args.group_size * args.q_stride + state % args.group_size * args.head_dim;
  }
};

// Scores of kRows states against kBlocks blocks of keys, registers of keys side by side. What it reads, it
// asks for of the `next` tile too: spread over the tile's work, memory and arithmetic go on together.
template <int kRows, int kBlocks>
HWY_INLINE void ScoreTile(const States& states, int64_t state, const KeyTile& tile, const KeyTile& next,
                          int64_t block) {
  constexpr int kNumParts = kBlocks * kParts;
  const float* q[kRows];
  for (int row = 0; row < kRows; ++row) q[row] = states.query(state + row);
  FloatVec acc[kRows][kNumParts];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) acc[row][part] = hn::Zero(kFloat);
  }
  const int64_t d = states.args.head_dim;
  for (int64_t i = 0; i < d; ++i) {
    for (int b = 0; b < kBlocks; ++b) hwy::Prefetch(next.keys[block + b] + i * kKvBlockTokens);
    FloatVec keys[kNumParts];
    for (int part = 0; part < kNumParts; ++part) {
      keys[part] = LoadHalf(tile.keys[block + part / kParts] + i * kKvBlockTokens + part % kParts * kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const FloatVec value = hn::Set(kFloat, q[row][i]);
      for (int part = 0; part < kNumParts; ++part) {
        acc[row][part] = hn::MulAdd(keys[part], value, acc[row][part]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    float* scores = states.scores + (state + row) * kAttentionTile + block * kKvBlockTokens;
    for (int part = 0; part < kNumParts; ++part) hn::StoreU(acc[row][part], kFloat, scores + part * kLanes);
  }
}

// O of kRows states and kNumParts registers of columns.
template <int kRows, int kNumParts>
HWY_INLINE void ValueTile(const States& states, int64_t state, const KeyTile& tile, const KeyTile& next,
                          int64_t column) {
  const int64_t d = states.args.head_dim;
  FloatVec acc[kRows][kNumParts];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) {
      acc[row][part] = hn::LoadU(kFloat, states.values(state + row) + column + part * kLanes);
    }
  }
  const float* p = states.scores + state * kAttentionTile;
  for (int64_t key = 0; key < tile.count; ++key) {
    const int64_t offset = key % kKvBlockTokens * d + column;
    const Half* from = tile.values[key / kKvBlockTokens] + offset;
    for (int part = 0; part < kNumParts; part += kLineParts) {
      hwy::Prefetch(next.values[key / kKvBlockTokens] + offset + part * kLanes);
    }
    FloatVec values[kNumParts];
    for (int part = 0; part < kNumParts; ++part) values[part] = LoadHalf(from + part * kLanes);
    for (int row = 0; row < kRows; ++row) {
      const FloatVec weight = hn::Set(kFloat, p[row * kAttentionTile + key]);
      for (int part = 0; part < kNumParts; ++part) {
        acc[row][part] = hn::MulAdd(weight, values[part], acc[row][part]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) {
      hn::StoreU(acc[row][part], kFloat, states.values(state + row) + column + part * kLanes);
    }
  }
}

// Both products of kRows states, in the order in which a tile needs them.
template <int kRows>
HWY_INLINE void ScoreRows(const States& states, int64_t state, const KeyTile& tile, const KeyTile& next) {
  constexpr int kBlocks = kRows <= kTileRows / 2 ? 2 * kTileParts / kParts : kTileParts / kParts;
  for (int64_t block = 0; block < kTileBlocks; block += kBlocks) {
    ScoreTile<kRows, kBlocks>(states, state, tile, next, block);
  }
}

template <int kRows>
HWY_INLINE void ValueRows(const States& states, int64_t state, const KeyTile& tile, const KeyTile& next) {
  const int64_t d = states.args.head_dim;
  constexpr int kWide = kRows <= kTileRows / 2 ? 2 * kTileParts : kTileParts;
  int64_t column = 0;
  for (; column + kWide * kLanes <= d; column += kWide * kLanes) {
    ValueTile<kRows, kWide>(states, state, tile, next, column);
  }
  for (; column < d; column += kVirtualLanes) ValueTile<kRows, kParts>(states, state, tile, next, column);
}

// Calls `call` with the compile-time number that `rows` is.
template <int kMost, class Call>
HWY_INLINE void WithRows(int64_t rows, const Call& call) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return WithRows<kMost - 1>(rows, call);
  }
  call(std::integral_constant<int, kMost>());
}

// 2^x for x <= 0 (or a rounding error above), rounded to fp16: what Exp2 of kernels/math.h gives after the
// same rounding, since what lies below 2^-126 becomes 0.
HWY_INLINE FloatVec Probability(FloatVec x) {
  const hn::RebindToSigned<FloatTag> int_tag;
  x = hn::Max(x, hn::Set(kFloat, -126.0f));
  const FloatVec n = hn::Round(x);
  const FloatVec mantissa = EvaluateVec(Exp2Polynomial(), hn::Sub(x, n));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(int_tag, n));
  const FloatVec p = hn::BitCast(kFloat, hn::Add(hn::BitCast(int_tag, mantissa), exponent));
  return hn::PromoteTo(kFloat, hn::DemoteTo(kHalf, p));
}

// Turns one state's scores of a tile into P, of which keys from `count` on get 0, and updates m, l and O.
HWY_INLINE void SoftmaxRow(const States& states, int64_t state, int64_t count, float c) {
  float* scores = states.scores + state * kAttentionTile;
  float& max = states.max(state);
  for (int64_t i = count / kLanes * kLanes; i < kAttentionTile; i += kLanes) {
    const auto visible = hn::FirstN(kFloat, static_cast<size_t>(std::max<int64_t>(count - i, 0)));
    hn::StoreU(hn::IfThenElse(visible, hn::LoadU(kFloat, scores + i), hn::Set(kFloat, -INFINITY)), kFloat,
               scores + i);
  }
  FloatVec max_vec = hn::LoadU(kFloat, scores);
  for (int64_t i = kLanes; i < kAttentionTile; i += kLanes) {
    max_vec = hn::Max(max_vec, hn::LoadU(kFloat, scores + i));
  }
  const float new_max = std::max(max, hn::GetLane(hn::MaxOfLanes(kFloat, max_vec)));
  float* lanes = states.lanes + state * kVirtualLanes;
  if (new_max != max) {
    const FloatVec alpha = hn::Set(kFloat, Exp2(std::fma(max, c, -(new_max * c))));
    for (int64_t i = 0; i < kVirtualLanes; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(kFloat, lanes + i), alpha), kFloat, lanes + i);
    }
    float* values = states.values(state);
    for (int64_t i = 0; i < states.args.head_dim; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(kFloat, values + i), alpha), kFloat, values + i);
    }
    max = new_max;
  }
  const FloatVec scale = hn::Set(kFloat, c), offset = hn::Set(kFloat, -(max * c));
  FloatVec sums[kParts];
  for (int part = 0; part < kParts; ++part) sums[part] = hn::LoadU(kFloat, lanes + part * kLanes);
  for (int64_t i = 0; i < kAttentionTile; i += kVirtualLanes) {
    for (int part = 0; part < kParts; ++part) {
      float* at = scores + i + part * kLanes;
      const FloatVec p = Probability(hn::MulAdd(hn::LoadU(kFloat, at), scale, offset));
      hn::StoreU(p, kFloat, at);
      sums[part] = hn::Add(sums[part], p);
    }
  }
  for (int part = 0; part < kParts; ++part) hn::StoreU(sums[part], kFloat, lanes + part * kLanes);
}

// The keys of a tile for all states that see any of them.
HWY_INLINE void TileStep(const States& states, const KeyTile& tile, const KeyTile& next, float c) {
  const AttentionArgs& args = states.args;
  const auto visible = [&](int64_t state) HWY_ATTR {
    return std::min(args.first_position + state / args.group_size + 1 - tile.begin, tile.count);
  };
  const int64_t first = std::max<int64_t>(0, tile.begin - args.first_position) * args.group_size;
  const int64_t num_states = args.num_states();
  const auto for_rows = [&](const auto& call) HWY_ATTR {
    const int64_t tiles = (num_states - first + kTileRows - 1) / kTileRows;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t begin = first + (num_states - first) * i / tiles;
      call(begin, first + (num_states - first) * (i + 1) / tiles - begin);
    }
  };
  for_rows([&](int64_t state, int64_t rows) HWY_ATTR {
    WithRows<kTileRows>(rows, [&](auto count) HWY_ATTR { ScoreRows<count()>(states, state, tile, next); });
  });
  for (int64_t state = first; state < num_states; ++state) SoftmaxRow(states, state, visible(state), c);
  for_rows([&](int64_t state, int64_t rows) HWY_ATTR {
    WithRows<kTileRows>(rows, [&](auto count) HWY_ATTR { ValueRows<count()>(states, state, tile, next); });
  });
}

void AttentionChunkTarget(const AttentionArgs& args, int64_t chunk, float* partials, float* scratch) {
  const int64_t num_states = args.num_states(), stride = PartialStride(args.head_dim);
  const States states{args, partials, scratch, scratch + num_states * kVirtualLanes};
  std::fill_n(states.lanes, num_states * kVirtualLanes, 0.0f);
  std::fill_n(partials, num_states * stride, 0.0f);
  for (int64_t state = 0; state < num_states; ++state) states.max(state) = -INFINITY;

  const float c = kLog2E / std::sqrt(static_cast<float>(args.head_dim));
  const int64_t num_keys = args.num_keys();
  const int64_t end = std::min((chunk + 1) * kAttentionChunk, num_keys);
  for (int64_t begin = chunk * kAttentionChunk; begin < end; begin += kAttentionTile) {
    const int64_t next = begin + kAttentionTile < num_keys ? begin + kAttentionTile : begin;
    TileStep(states, TileAt(args, begin, end), TileAt(args, next, num_keys), c);
  }
  for (int64_t state = 0; state < num_states; ++state) {
    FloatVec lanes[kParts];
    for (int part = 0; part < kParts; ++part) {
      lanes[part] = hn::LoadU(kFloat, states.lanes + state * kVirtualLanes + part * kLanes);
    }
    partials[state * stride + 1] = SumLanes(lanes);
  }
}

// Folds a chunk's partial into that of the chunks before it.
void FoldTarget(const float* chunk, int64_t d, float* folded) {
  const float c = kLog2E / std::sqrt(static_cast<float>(d));
  const float max = std::max(folded[0], chunk[0]);
  const float a = Exp2(std::fma(folded[0], c, -(max * c)));
  const float b = Exp2(std::fma(chunk[0], c, -(max * c)));
  folded[0] = max;
  folded[1] = std::fma(folded[1], a, chunk[1] * b);
  const FloatVec a_vec = hn::Set(kFloat, a), b_vec = hn::Set(kFloat, b);
  for (int64_t i = kVirtualLanes; i < kVirtualLanes + d; i += kLanes) {
    const FloatVec scaled = hn::Mul(hn::LoadU(kFloat, chunk + i), b_vec);
    hn::StoreU(hn::MulAdd(hn::LoadU(kFloat, folded + i), a_vec, scaled), kFloat, folded + i);
  }
}

void FoldChunkTarget(const AttentionArgs& args, int64_t chunk, const float* partials, float* folded) {
  const int64_t stride = PartialStride(args.head_dim);
  // Rows before the chunk have no part in it.
  const int64_t first = std::max<int64_t>(0, chunk * kAttentionChunk - args.first_position) * args.group_size;
  for (int64_t state = first; state < args.num_states(); ++state) {
    FoldTarget(partials + state * stride, args.head_dim, folded + state * stride);
  }
}

void WriteOutTarget(const AttentionArgs& args, const float* folded) {
  const int64_t d = args.head_dim;
  for (int64_t state = 0; state < args.num_states(); ++state, folded += PartialStride(args.head_dim)) {
    float* out = args.out + state / args.group_size * args.out_stride + state % args.group_size * d;
    const FloatVec sum = hn::Set(kFloat, folded[1]);
    for (int64_t i = 0; i < d; i += kLanes) {
      const FloatVec value = hn::Div(hn::LoadU(kFloat, folded + kVirtualLanes + i), sum);
      hn::StoreU(hn::Add(RoundVecToHalf(value, args.saturations), hn::Zero(kFloat)), kFloat, out + i);
    }
  }
}

void AttentionTarget(const AttentionArgs& args, float* scratch) {
  const int64_t size = args.num_states() * PartialStride(args.head_dim);
  float* folded = scratch;
  float* partials = folded + size;
  AttentionChunkTarget(args, 0, folded, partials + size);
  for (int64_t chunk = 1; chunk < args.num_chunks(); ++chunk) {
    AttentionChunkTarget(args, chunk, partials, partials + size);
    FoldChunkTarget(args, chunk, partials, folded);
  }
  WriteOutTarget(args, folded);
}

void FoldChunksTarget(const AttentionArgs& args, float* partials) {
  const int64_t size = args.num_states() * PartialStride(args.head_dim);
  for (int64_t chunk = 1; chunk < args.num_chunks(); ++chunk) {
    FoldChunkTarget(args, chunk, partials + chunk * size, partials);
  }
  WriteOutTarget(args, partials);
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {

HWY_EXPORT(AttentionTarget);
HWY_EXPORT(AttentionChunkTarget);
HWY_EXPORT(FoldChunksTarget);

int64_t AttentionScratch(int64_t num_states, int32_t head_dim) {
  return num_states * (2 * PartialStride(head_dim) + kVirtualLanes + kAttentionTile);
}

void Attention(const AttentionArgs& args, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttentionTarget)(args, scratch);
}

void AttentionChunk(const AttentionArgs& args, int64_t chunk, float* partials, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttentionChunkTarget)(args, chunk, partials, scratch);
}

void FoldChunks(const AttentionArgs& args, float* partials) {
  HWY_DYNAMIC_DISPATCH(FoldChunksTarget)(args, partials);
}

}  // namespace ridge::kernels::cpu
#endif
