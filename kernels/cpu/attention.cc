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

// Once, not for each instruction set.
#ifndef RIDGE_KERNELS_CPU_ATTENTION_SIZES_
#define RIDGE_KERNELS_CPU_ATTENTION_SIZES_
namespace ridge::kernels::cpu {

// Blocks whose keys are asked for before they are used.
constexpr int64_t kAheadPieces = 8;
// Keys whose values are added to all columns before the next ones'.
constexpr int64_t kValueKeys = 64;
constexpr int64_t kMaxPieces = 2 * kAttentionChunk / kKvBlockTokens + 1;
// States that an instruction set works on at a time, at most.
constexpr int64_t kAttentionTileRows = 12;

}  // namespace ridge::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

// Accumulators of the two products, as in the matmul: rows times registers.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
constexpr int kTileParts = kLanes == 4 ? 4 : 2;
static_assert(kTileRows <= kAttentionTileRows);

// What some states (rows times query heads) do with a chunk together.
struct StateTile {
  const AttentionArgs& args;
  int64_t first;     // state
  int64_t begin;     // key: the chunk's first
  int64_t num_keys;  // of the chunk that any of them sees
  float* queries;    // [rows][kMaxAttentionHeadDim]
  float* scores;     // [rows][kAttentionChunk]; then P
  float* partials;   // [rows][PartialStride]

  const Half* block(int64_t i) const {
    return args.pool + args.block_table[begin / kKvBlockTokens + i] * args.block_stride;
  }
  int64_t num_blocks() const { return (num_keys + kKvBlockTokens - 1) / kKvBlockTokens; }
  int64_t visible(int64_t row) const {
    const int64_t seen = args.first_position + (first + row) / args.group_size + 1 - begin;
    return std::clamp<int64_t>(seen, 0, num_keys);
  }
};

// A block's keys or values in memory.
struct Piece {
  const Half* begin;
  const Half* end;
};

// Asks for a list of pieces line by line: while one line is worked on, one further on is asked for, so that
// memory and arithmetic go on together. Loops take a copy, which lives in registers.
struct Ahead {
  const Half* at;
  const Half* end;
  const Piece* piece;
  const Piece* last;  // lies in the cache; asked for when the others have been

  HWY_INLINE void Line() {
    constexpr int64_t kLine = 64 / sizeof(Half);
    __builtin_prefetch(at, 0, 2);  // to the second-level cache, past the few fill buffers of the first
    at += kLine;
    if (HWY_LIKELY(at != end)) return;
    piece += piece != last;
    at = piece->begin;
    end = piece->end;
  }
  HWY_INLINE bool done() const { return piece == last; }
};

// What a chunk reads beyond its first kAheadPieces, and that many of what comes next. `cached` has the size
// of a piece.
Ahead ListPieces(const AttentionArgs& args, int64_t chunk, const float* cached, Piece (&list)[kMaxPieces]) {
  const KeyBlocks keys = KeysOfChunk(args, chunk);
  const int64_t size = int64_t{args.head_dim} * kKvBlockTokens;
  Piece* last = list;
  const auto add = [&](const int32_t* begin, const int32_t* end, int64_t offset) {
    for (; begin < end; ++begin) {
      const Half* from = args.pool + *begin * args.block_stride + offset;
      *last++ = {from, from + size};
    }
  };
  add(keys.blocks + kAheadPieces, keys.blocks + keys.count, args.k_offset);
  add(keys.blocks, keys.blocks + keys.count, args.v_offset);
  add(args.next.blocks, args.next.blocks + std::min(kAheadPieces, args.next.count), args.next.k_offset);
  *last = {reinterpret_cast<const Half*>(cached), reinterpret_cast<const Half*>(cached) + size};
  return {list[0].begin, list[0].end, list, last};
}

// Calls step(0), step(1), .. with numbers of the compiler's.
template <int kCount, class Step>
HWY_INLINE void Unrolled(const Step& step) {
  if constexpr (kCount > 1) Unrolled<kCount - 1>(step);
  step(std::integral_constant<int, kCount - 1>());
}

// Of eight steps of a product one asks for nothing: the softmax has its part of the lines.
constexpr bool StepAsks(int64_t i) {
  return (i & 7) != 7;
}

// Scores of kRows states against kBlocks blocks of keys, registers of keys side by side.
template <int kRows, int kBlocks>
HWY_INLINE void ScoreBlocks(const StateTile& tile, int64_t block, Ahead* ahead) {
  constexpr int kNumParts = kBlocks * kParts;
  FloatVec acc[kRows][kNumParts];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) acc[row][part] = hn::Zero(kFloat);
  }
  const Half* from[kBlocks];  // [head_dim][16]
  for (int b = 0; b < kBlocks; ++b) {
    from[b] = tile.block(std::min(block + b, tile.num_blocks() - 1)) + tile.args.k_offset;
  }
  const float* q = tile.queries;
  const int64_t d = tile.args.head_dim;
  Ahead lines = *ahead;
  const auto add_column = [&](int64_t i) HWY_ATTR {
    FloatVec keys[kNumParts];
    for (int part = 0; part < kNumParts; ++part) {
      keys[part] = LoadHalf(from[part / kParts] + i * kKvBlockTokens + part % kParts * kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const FloatVec value = hn::Set(kFloat, q[row * kMaxAttentionHeadDim + i]);
      for (int part = 0; part < kNumParts; ++part) {
        acc[row][part] = hn::MulAdd(keys[part], value, acc[row][part]);
      }
    }
  };
  // Two columns of a block are a line.
  for (int64_t i = 0; i < d; i += 2) {
    if (StepAsks(i / 2)) {
      for (int b = 0; b < kBlocks; ++b) lines.Line();
    }
    add_column(i);
    add_column(i + 1);
  }
  *ahead = lines;
  float* scores = tile.scores + block * kKvBlockTokens;
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) {
      hn::StoreU(acc[row][part], kFloat, scores + row * kAttentionChunk + part * kLanes);
    }
  }
}

// Adds keys [begin, end) to O of kRows states and kNumParts registers of columns.
template <int kRows, int kNumParts>
HWY_INLINE void ValueColumns(const StateTile& tile, int64_t begin, int64_t end, int64_t column,
                             Ahead* ahead) {
  const int64_t d = tile.args.head_dim, stride = PartialStride(d);
  float* out = tile.partials + kVirtualLanes + column;
  FloatVec acc[kRows][kNumParts];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) {
      acc[row][part] = begin == 0 ? hn::Zero(kFloat) : hn::LoadU(kFloat, out + row * stride + part * kLanes);
    }
  }
  constexpr int kLines = std::max(1, kNumParts * kLanes / 32);
  Ahead lines = *ahead;
  for (int64_t first = begin; first < end; first += kKvBlockTokens) {
    const Half* from = tile.block(first / kKvBlockTokens) + tile.args.v_offset + column;
    const float* p = tile.scores + first;
    const auto add_key = [&](int64_t key) HWY_ATTR __attribute__((always_inline)) {
      if (StepAsks(key)) {
        for (int line = 0; line < kLines; ++line) lines.Line();
      }
      FloatVec values[kNumParts];
      for (int part = 0; part < kNumParts; ++part) values[part] = LoadHalf(from + key * d + part * kLanes);
      for (int row = 0; row < kRows; ++row) {
        const FloatVec weight = hn::Set(kFloat, p[row * kAttentionChunk + key]);
        for (int part = 0; part < kNumParts; ++part) {
          acc[row][part] = hn::MulAdd(weight, values[part], acc[row][part]);
        }
      }
    };
    if (first + kKvBlockTokens <= end) {
      Unrolled<kKvBlockTokens>([&](auto key) HWY_ATTR __attribute__((always_inline)) { add_key(key()); });
    } else {
      for (int64_t key = 0; key < end - first; ++key) add_key(key);
    }
  }
  *ahead = lines;
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kNumParts; ++part) {
      hn::StoreU(acc[row][part], kFloat, out + row * stride + part * kLanes);
    }
  }
}

// Exp2OfProbability of kernels/math.h, lane by lane the same operations, rounded to fp16.
HWY_INLINE FloatVec Probability(FloatVec x) {
  // Adding it leaves a whole number in the last bits; a shift makes them an exponent.
  const FloatVec shifter = hn::Set(kFloat, 0x1.8p23f);
  const hn::RebindToSigned<FloatTag> int_tag;
  x = hn::Max(x, hn::Set(kFloat, -126.0f));
  const FloatVec shifted = hn::Add(x, shifter);
  const FloatVec rest = hn::Sub(x, hn::Sub(shifted, shifter));
  constexpr Polynomial4 kPolynomial = Exp2ShortPolynomial();
  FloatVec mantissa = hn::Set(kFloat, kPolynomial.terms[3]);
  for (int i = 2; i >= 0; --i) mantissa = hn::MulAdd(mantissa, rest, hn::Set(kFloat, kPolynomial.terms[i]));
  mantissa = hn::MulAdd(mantissa, rest, hn::Set(kFloat, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(int_tag, shifted));
  const FloatVec p = hn::BitCast(kFloat, hn::Add(hn::BitCast(int_tag, mantissa), exponent));
  return hn::PromoteTo(kFloat, hn::DemoteTo(kHalf, p));
}

// Of one row's scores: sets those that it does not see to minus infinity, and returns the largest.
HWY_INLINE float MaskRow(const StateTile& tile, int64_t row) {
  float* scores = tile.scores + row * kAttentionChunk;
  const int64_t visible = tile.visible(row);
  const int64_t size = tile.num_blocks() * kKvBlockTokens;
  for (int64_t i = visible / kLanes * kLanes; i < size; i += kLanes) {
    const auto seen = hn::FirstN(kFloat, static_cast<size_t>(std::max<int64_t>(visible - i, 0)));
    hn::StoreU(hn::IfThenElse(seen, hn::LoadU(kFloat, scores + i), hn::Set(kFloat, -INFINITY)), kFloat,
               scores + i);
  }
  FloatVec max = hn::LoadU(kFloat, scores);
  for (int64_t i = kLanes; i < size; i += kLanes) max = hn::Max(max, hn::LoadU(kFloat, scores + i));
  return hn::GetLane(hn::MaxOfLanes(kFloat, max));
}

// Turns one row's scores, of which `max` is the largest, into P, and returns their sum.
HWY_INLINE float ExpRow(const StateTile& tile, int64_t row, float max, float c, Ahead* ahead) {
  float* scores = tile.scores + row * kAttentionChunk;
  const int64_t size = tile.num_blocks() * kKvBlockTokens;
  const FloatVec scale = hn::Set(kFloat, c), offset = hn::Set(kFloat, -(max * c));
  Ahead lines = *ahead;
  FloatVec sums[kParts];
  for (int part = 0; part < kParts; ++part) sums[part] = hn::Zero(kFloat);
  for (int64_t i = 0; i < size; i += kVirtualLanes) {
    lines.Line();
    for (int part = 0; part < kParts; ++part) {
      float* at = scores + i + part * kLanes;
      const FloatVec p = Probability(hn::MulAdd(hn::LoadU(kFloat, at), scale, offset));
      hn::StoreU(p, kFloat, at);
      sums[part] = hn::Add(sums[part], p);
    }
  }
  *ahead = lines;
  return SumLanes(sums);
}

template <int kRows>
HWY_INLINE void AttendRows(const StateTile& tile, float c, Ahead* ahead) {
  const int64_t d = tile.args.head_dim;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t state = tile.first + row;
    const float* from =
        tile.args.q + state / tile.args.group_size * tile.args.q_stride + state % tile.args.group_size * d;
    float* to = tile.queries + row * kMaxAttentionHeadDim;
    for (int64_t i = 0; i < d; i += kLanes) hn::StoreU(hn::LoadU(kFloat, from + i), kFloat, to + i);
  }
  // Few rows leave registers for more keys or columns side by side.
  constexpr int kWide = kRows <= kTileRows / 2 ? 2 * kTileParts : kTileParts;
  constexpr int kBlocks = kWide / kParts;
  for (int64_t block = 0; block < tile.num_blocks(); block += kBlocks) {
    ScoreBlocks<kRows, kBlocks>(tile, block, ahead);
  }
  // Rows one after the other in each step, whose latencies overlap.
  const int64_t stride = PartialStride(d);
  for (int64_t row = 0; row < kRows; ++row) tile.partials[row * stride] = MaskRow(tile, row);
  for (int64_t row = 0; row < kRows; ++row) {
    float* partial = tile.partials + row * stride;
    partial[1] = ExpRow(tile, row, partial[0], c, ahead);
  }
  // All columns of a few blocks, then of the next: memory is asked in the order of blocks.
  for (int64_t begin = 0; begin < tile.num_keys; begin += kValueKeys) {
    const int64_t end = std::min(begin + kValueKeys, tile.num_keys);
    int64_t column = 0;
    for (; column + kWide * kLanes <= d; column += kWide * kLanes) {
      ValueColumns<kRows, kWide>(tile, begin, end, column, ahead);
    }
    for (; column < d; column += kVirtualLanes) {
      ValueColumns<kRows, kParts>(tile, begin, end, column, ahead);
    }
  }
}

// Calls `call` with the compile-time number that `rows` is.
template <int kMost, class Call>
HWY_INLINE void WithRows(int64_t rows, const Call& call) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return WithRows<kMost - 1>(rows, call);
  }
  call(std::integral_constant<int, kMost>());
}

void AttentionChunkTarget(const AttentionArgs& args, int64_t chunk, float* partials, float* scratch) {
  const int64_t num_states = args.num_states(), stride = PartialStride(args.head_dim);
  const int64_t begin = chunk * kAttentionChunk;
  const float c = kLog2E / std::sqrt(static_cast<float>(args.head_dim));
  Piece pieces[kMaxPieces];
  Ahead ahead = ListPieces(args, chunk, scratch, pieces);
  // Rows before the chunk have no part in it, and compute with it only where they are padded.
  const int64_t first =
      begin < args.padded_keys ? 0 : std::max<int64_t>(0, begin - args.first_position) * args.group_size;
  const int64_t tiles = (num_states - first + kTileRows - 1) / kTileRows;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t from = first + (num_states - first) * i / tiles;
    const int64_t to = first + (num_states - first) * (i + 1) / tiles;
    const int64_t seen = args.first_position + (to - 1) / args.group_size + 1;
    const int64_t num_keys = std::min<int64_t>(kAttentionChunk, std::max(seen, args.padded_keys) - begin);
    const StateTile tile{args,
                         from,
                         begin,
                         num_keys,
                         scratch,
                         scratch + kTileRows * kMaxAttentionHeadDim,
                         partials + from * stride};
    WithRows<kTileRows>(to - from, [&](auto rows) HWY_ATTR { AttendRows<rows()>(tile, c, &ahead); });
  }
  while (!ahead.done()) ahead.Line();  // where there were fewer steps than lines
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
  const int64_t num_chunks = args.num_chunks();
  AttentionArgs chunk_args = args;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    chunk_args.next = chunk + 1 < num_chunks ? KeysOfChunk(args, chunk + 1) : args.next;
    AttentionChunkTarget(chunk_args, chunk, chunk == 0 ? folded : partials, partials + size);
    if (chunk > 0) FoldChunkTarget(args, chunk, partials, folded);
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
  return 2 * num_states * PartialStride(head_dim) +
         kAttentionTileRows * (kMaxAttentionHeadDim + kAttentionChunk);
}

KeyBlocks KeysOfChunk(const AttentionArgs& args, int64_t chunk) {
  constexpr int64_t kChunkBlocks = kAttentionChunk / kKvBlockTokens;
  const int64_t num_blocks = (args.keys_read() + kKvBlockTokens - 1) / kKvBlockTokens;
  const int64_t first = chunk * kChunkBlocks;
  return {args.block_table + first, std::min(kChunkBlocks, num_blocks - first), args.k_offset};
}

void PrefetchKeys(const Half* pool, int64_t block_stride, int32_t head_dim, const KeyBlocks& keys) {
  constexpr int64_t kLine = 64 / sizeof(Half);
  for (int64_t i = 0; i < std::min(kAheadPieces, keys.count); ++i) {
    const Half* from = pool + keys.blocks[i] * block_stride + keys.k_offset;
    for (int64_t at = 0; at < int64_t{head_dim} * kKvBlockTokens; at += kLine) hwy::Prefetch(from + at);
  }
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
