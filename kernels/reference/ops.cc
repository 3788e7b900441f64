#include "kernels/reference/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/half.h"
#include "kernels/math.h"
#include "kernels/order.h"

namespace ridge::kernels::reference {
namespace {

using Lanes = std::array<float, kVirtualLanes>;

float SumLanes(Lanes lanes) {
  for (int width = kVirtualLanes / 2; width >= 1; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

float Rounded(Mode mode, float value) {
  int64_t saturations = 0;
  return mode == Mode::kContract ? RoundToHalf(value, &saturations) : value;
}

float Dot(Mode mode, const float* a, const float* b, int64_t size) {
  if (mode == Mode::kFloat32) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += double{a[i]} * b[i];
    return static_cast<float>(sum);
  }
  Lanes lanes{};
  for (int64_t i = 0; i < size; ++i)
    lanes[i % kVirtualLanes] = std::fma(a[i], b[i], lanes[i % kVirtualLanes]);
  return SumLanes(lanes);
}

// The same as Dot, but for a matmul: chains in chunks of K.
float ChunkedDot(const float* w, const float* x, int64_t k) {
  float total = 0.0f;
  for (int64_t begin = 0; begin < k; begin += DotChunk(k)) {
    float sum = 0.0f;
    for (int64_t i = begin; i < std::min(begin + DotChunk(k), k); ++i) sum = std::fma(w[i], x[i], sum);
    total = begin == 0 ? sum : total + sum;
  }
  return total;
}

// 1 / sqrt(mean(x^2) + eps).
float NormScale(Mode mode, const float* x, float eps, int64_t size) {
  float sum = 0.0f;
  if (mode == Mode::kContract) {
    for (int64_t begin = 0; begin < size; begin += kNormGroup) {
      sum += Dot(mode, x + begin, x + begin, std::min<int64_t>(kNormGroup, size - begin));
    }
  } else {
    sum = Dot(mode, x, x, size);
  }
  return Rsqrt(sum / static_cast<float>(size) + eps);
}

void AttentionFloat64(const float* q, const float* keys, const float* values, int64_t num_keys, int64_t d,
                      float* out) {
  std::vector<double> scores(num_keys);
  double max = -INFINITY, sum = 0;
  for (int64_t key = 0; key < num_keys; ++key) {
    double dot = 0;
    for (int64_t i = 0; i < d; ++i) dot += double{q[i]} * keys[key * d + i];
    scores[key] = dot / std::sqrt(static_cast<double>(d));
    max = std::max(max, scores[key]);
  }
  for (double& score : scores) sum += score = std::exp(score - max);
  for (int64_t i = 0; i < d; ++i) {
    double value = 0;
    for (int64_t key = 0; key < num_keys; ++key) value += scores[key] * values[key * d + i];
    out[i] = static_cast<float>(value / sum);
  }
}

struct Softmax {
  float max = -INFINITY;
  float sum = 0.0f;
  std::vector<float> values;
};

float Score(const float* q, const float* key, int64_t d) {
  float sum = 0.0f;
  for (int64_t i = 0; i < d; ++i) sum = std::fma(key[i], q[i], sum);
  return sum;
}

Softmax Chunk(const float* q, const float* keys, const float* values, int64_t count, int64_t d, float c) {
  std::vector<float> scores(count);
  for (int64_t key = 0; key < count; ++key) scores[key] = Score(q, keys + key * d, d);
  Softmax chunk;
  chunk.max = *std::max_element(scores.begin(), scores.end());
  chunk.values.assign(d, 0.0f);
  Lanes lanes{};
  for (int64_t key = 0; key < count; ++key) {
    const float exponent = std::fma(scores[key], c, -(chunk.max * c));
    const float p = Rounded(Mode::kContract, Exp2OfProbability(exponent));
    lanes[key % kVirtualLanes] += p;
    for (int64_t i = 0; i < d; ++i) chunk.values[i] = std::fma(p, values[key * d + i], chunk.values[i]);
  }
  chunk.sum = SumLanes(lanes);
  return chunk;
}

void Fold(const Softmax& chunk, float c, Softmax* folded) {
  const float max = std::max(folded->max, chunk.max);
  const float a = Exp2(std::fma(folded->max, c, -(max * c)));
  const float b = Exp2(std::fma(chunk.max, c, -(max * c)));
  folded->sum = std::fma(folded->sum, a, chunk.sum * b);
  folded->max = max;
  for (size_t i = 0; i < folded->values.size(); ++i) {
    folded->values[i] = std::fma(folded->values[i], a, chunk.values[i] * b);
  }
}

}  // namespace

void Matmul(Mode mode, const float* x, const float* w, const float* bias, int64_t m, int64_t n, int64_t k,
            float* y) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      const float* weights = w + column * k;
      float value =
          mode == Mode::kContract ? ChunkedDot(weights, x + row * k, k) : Dot(mode, weights, x + row * k, k);
      if (bias != nullptr) value += bias[column];
      y[row * n + column] = value;
    }
  }
}

void RmsNorm(Mode mode, const float* x, const float* weight, float eps, int64_t size, float* out) {
  const float scale = NormScale(mode, x, eps, size);
  for (int64_t i = 0; i < size; ++i) out[i] = Rounded(mode, x[i] * scale * weight[i]);
}

void NormHead(Mode mode, const float* weight, float eps, int64_t head_dim, float* x) {
  const float scale = NormScale(mode, x, eps, head_dim);
  for (int64_t i = 0; i < head_dim; ++i) x[i] = x[i] * scale * weight[i];
}

void RotateHead(Mode mode, const float* cosines, const float* sines, int64_t head_dim, float* x) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i], high = x[i + half];
    x[i] = Rounded(mode, std::fma(low, cosines[i], -(high * sines[i])));
    x[i + half] = Rounded(mode, std::fma(high, cosines[i], low * sines[i]));
  }
}

void SwiGlu(Mode mode, const float* gate, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) {
    const float exponential = mode == Mode::kContract ? Exp(-gate[i]) : std::exp(-gate[i]);
    out[i] = Rounded(mode, gate[i] / (1.0f + exponential) * up[i]);
  }
}

void RoundRow(Mode mode, int64_t size, float* x) {
  for (int64_t i = 0; i < size; ++i) x[i] = Rounded(mode, x[i]);
}

void Attention(Mode mode, const float* q, const float* keys, const float* values, int64_t num_keys,
               int64_t head_dim, float* out) {
  if (mode == Mode::kFloat32) return AttentionFloat64(q, keys, values, num_keys, head_dim, out);
  const float c = kLog2E / std::sqrt(static_cast<float>(head_dim));
  Softmax folded;
  for (int64_t begin = 0; begin < num_keys; begin += kAttentionChunk) {
    const int64_t count = std::min<int64_t>(kAttentionChunk, num_keys - begin);
    Softmax chunk = Chunk(q, keys + begin * head_dim, values + begin * head_dim, count, head_dim, c);
    if (begin == 0) {
      folded = std::move(chunk);
    } else {
      Fold(chunk, c, &folded);
    }
  }
  for (int64_t i = 0; i < head_dim; ++i) out[i] = Rounded(mode, folded.values[i] / folded.sum) + 0.0f;
}

float LogSumExp(Mode mode, const float* logits, int64_t size) {
  if (mode == Mode::kFloat32) {
    const double max = *std::max_element(logits, logits + size);
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += std::exp(logits[i] - max);
    return static_cast<float>(max + std::log(sum));
  }
  float max = -INFINITY, sum = 0.0f;
  for (int64_t begin = 0; begin < size; begin += kVocabularySlice) {
    const int64_t length = std::min<int64_t>(kVocabularySlice, size - begin);
    const float slice_max = *std::max_element(logits + begin, logits + begin + length);
    Lanes lanes{};
    for (int64_t i = 0; i < length; ++i) lanes[i % kVirtualLanes] += Exp(logits[begin + i] - slice_max);
    const float new_max = std::max(max, slice_max);
    sum = std::fma(sum, Exp(max - new_max), SumLanes(lanes) * Exp(slice_max - new_max));
    max = new_max;
  }
  return max + Log(sum);
}

}  // namespace ridge::kernels::reference
