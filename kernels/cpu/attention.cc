#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::kernels::cpu::HWY_NAMESPACE {

// Running maximum, sum and weighted values of one row and query head.
struct Softmax {
  float max;
  float sum;
  float* values;  // [head_dim]
};

struct Workspace {
  float* keys;    // [kAttentionTile][head_dim]
  float* values;  // [kAttentionTile][head_dim]
  float* scores;  // [kAttentionTile]
  float* chunk;   // [rows * group][head_dim]
  float* folded;  // [rows * group][head_dim]
};

// keys [begin, end) of one tile as floats.
void LoadTile(const AttentionArgs& args, int64_t begin, int64_t end, const Workspace& work) {
  const int64_t d = args.head_dim;
  for (int64_t key = begin; key < end; ++key) {
    const int64_t base =
        args.block_table[key / kKvBlockTokens] * args.block_stride + key % kKvBlockTokens * d;
    const Half* k = args.pool + base + args.k_offset;
    const Half* v = args.pool + base + args.v_offset;
    float* k_to = work.keys + (key - begin) * d;
    float* v_to = work.values + (key - begin) * d;
    for (int64_t i = 0; i < d; i += kLanes) {
      hn::StoreU(LoadHalf(k + i), kFloat, k_to + i);
      hn::StoreU(LoadHalf(v + i), kFloat, v_to + i);
    }
  }
}

HWY_INLINE float Dot(const float* a, const float* b, int64_t size) {
  FloatVec parts[kParts];
  for (FloatVec& part : parts) part = hn::Zero(kFloat);
  for (int64_t i = 0; i < size; i += kVirtualLanes) {
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = i + part * kLanes;
      parts[part] = hn::MulAdd(hn::LoadU(kFloat, a + at), hn::LoadU(kFloat, b + at), parts[part]);
    }
  }
  return SumLanes(parts);
}

// values = values * scale.
HWY_INLINE void Scale(float scale, int64_t size, float* values) {
  const FloatVec factor = hn::Set(kFloat, scale);
  for (int64_t i = 0; i < size; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(kFloat, values + i), factor), kFloat, values + i);
  }
}

// One tile of `count` keys for one row and query head.
void TileStep(const float* q, float c, int64_t d, int64_t count, const Workspace& work, int64_t* saturations,
              Softmax* state) {
  float max = state->max;
  for (int64_t key = 0; key < count; ++key) {
    work.scores[key] = Dot(q, work.keys + key * d, d);
    max = std::max(max, work.scores[key]);
  }
  if (max != state->max) {
    const float alpha = Exp2(std::fma(state->max, c, -(max * c)));
    state->sum *= alpha;
    Scale(alpha, d, state->values);
    state->max = max;
  }
  // The last register may reach beyond count: give it something harmless.
  for (int64_t key = count; key % kLanes != 0; ++key) work.scores[key] = max;
  const FloatVec offset = hn::Set(kFloat, -(max * c));
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVec exponent = hn::MulAdd(hn::LoadU(kFloat, work.scores + i), hn::Set(kFloat, c), offset);
    hn::StoreU(RoundVecToHalf(Exp2Vec(exponent), saturations), kFloat, work.scores + i);
  }
  for (int64_t key = 0; key < count; ++key) state->sum += work.scores[key];
  for (int64_t i = 0; i < d; i += kVirtualLanes) {
    FloatVec acc[kParts];
    for (int part = 0; part < kParts; ++part)
      acc[part] = hn::LoadU(kFloat, state->values + i + part * kLanes);
    for (int64_t key = 0; key < count; ++key) {
      const FloatVec p = hn::Set(kFloat, work.scores[key]);
      for (int part = 0; part < kParts; ++part) {
        acc[part] = hn::MulAdd(p, hn::LoadU(kFloat, work.values + key * d + i + part * kLanes), acc[part]);
      }
    }
    for (int part = 0; part < kParts; ++part)
      hn::StoreU(acc[part], kFloat, state->values + i + part * kLanes);
  }
}

// Folds a chunk into the result of the chunks before it.
void Fold(const Softmax& chunk, float c, int64_t d, Softmax* folded) {
  const float max = std::max(folded->max, chunk.max);
  const float a = Exp2(std::fma(folded->max, c, -(max * c)));
  const float b = Exp2(std::fma(chunk.max, c, -(max * c)));
  folded->sum = std::fma(folded->sum, a, chunk.sum * b);
  folded->max = max;
  const FloatVec a_vec = hn::Set(kFloat, a);
  const FloatVec b_vec = hn::Set(kFloat, b);
  for (int64_t i = 0; i < d; i += kLanes) {
    const FloatVec scaled = hn::Mul(hn::LoadU(kFloat, chunk.values + i), b_vec);
    hn::StoreU(hn::MulAdd(hn::LoadU(kFloat, folded->values + i), a_vec, scaled), kFloat, folded->values + i);
  }
}

void AttentionTarget(const AttentionArgs& args, std::vector<float>* scratch) {
  const int64_t d = args.head_dim;
  const int64_t states = int64_t{args.num_rows} * args.group_size;
  const int64_t needed = (2 * kAttentionTile + 2 * states) * d + kAttentionTile;
  if (static_cast<int64_t>(scratch->size()) < needed) scratch->resize(needed);
  Workspace work;
  work.keys = scratch->data();
  work.values = work.keys + kAttentionTile * d;
  work.chunk = work.values + kAttentionTile * d;
  work.folded = work.chunk + states * d;
  work.scores = work.folded + states * d;

  const float c = kLog2E / std::sqrt(static_cast<float>(d));
  std::vector<Softmax> chunk(states), folded(states);
  const int64_t num_keys = args.first_position + args.num_rows;
  for (int64_t chunk_begin = 0; chunk_begin < num_keys; chunk_begin += kAttentionChunk) {
    const int64_t chunk_end = std::min(chunk_begin + kAttentionChunk, num_keys);
    std::fill_n(work.chunk, states * d, 0.0f);
    for (int64_t s = 0; s < states; ++s) chunk[s] = {-INFINITY, 0.0f, work.chunk + s * d};
    for (int64_t begin = chunk_begin; begin < chunk_end; begin += kAttentionTile) {
      const int64_t end = std::min<int64_t>(begin + kAttentionTile, chunk_end);
      LoadTile(args, begin, end, work);
      for (int64_t s = 0; s < states; ++s) {
        const int64_t row = s / args.group_size;
        const int64_t count = std::min(end, args.first_position + row + 1) - begin;
        if (count <= 0) continue;
        const float* q = args.q + row * args.row_stride + s % args.group_size * d;
        TileStep(q, c, d, count, work, args.saturations, &chunk[s]);
      }
    }
    for (int64_t s = 0; s < states; ++s) {
      if (chunk_begin == 0) {
        folded[s] = {chunk[s].max, chunk[s].sum, work.folded + s * d};
        std::copy_n(chunk[s].values, d, folded[s].values);
      } else if (args.first_position + s / args.group_size >= chunk_begin) {
        Fold(chunk[s], c, d, &folded[s]);
      }
    }
  }
  for (int64_t s = 0; s < states; ++s) {
    float* out = args.out + s / args.group_size * args.row_stride + s % args.group_size * d;
    const FloatVec sum = hn::Set(kFloat, folded[s].sum);
    for (int64_t i = 0; i < d; i += kLanes) {
      const FloatVec value = hn::Div(hn::LoadU(kFloat, folded[s].values + i), sum);
      hn::StoreU(RoundVecToHalf(value, args.saturations), kFloat, out + i);
    }
  }
}

}  // namespace ridge::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::kernels::cpu {

HWY_EXPORT(AttentionTarget);

void Attention(const AttentionArgs& args, std::vector<float>* scratch) {
  HWY_DYNAMIC_DISPATCH(AttentionTarget)(args, scratch);
}

}  // namespace ridge::kernels::cpu
#endif
