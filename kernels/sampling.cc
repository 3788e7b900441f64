#include "kernels/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/cpu/layer_ops.h"
#include "kernels/math.h"
#include "kernels/order.h"

namespace ridge::kernels {
namespace {

// Descending by value, then ascending by id.
class Before {
 public:
  explicit Before(absl::Span<const float> logits) : logits_(logits) {}
  bool operator()(int32_t a, int32_t b) const {
    return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
  }

 private:
  absl::Span<const float> logits_;
};

uint64_t Weight(float exponential) {
  return static_cast<uint64_t>(exponential * 0x1p40f);
}

// Ids by how far they are below the top: what lies in buckets before the one where top_p is crossed is kept
// without being sorted.
constexpr int32_t kBuckets = 256;
int32_t BucketOf(float x, float max_x) {
  const float eighths = (max_x - x) * 8.0f;
  return eighths < kBuckets - 1 ? static_cast<int32_t>(eighths) : kBuckets - 1;
}

std::array<uint64_t, kBuckets> BucketWeights(absl::Span<const float> logits, float temperature, float max_x,
                                             absl::Span<const int32_t> ids) {
  std::array<uint64_t, kBuckets> weights{};
  float x[kVocabularySlice], exponentials[kVocabularySlice];
  for (size_t begin = 0; begin < ids.size(); begin += kVocabularySlice) {
    const absl::Span<const int32_t> slice = ids.subspan(begin, kVocabularySlice);
    for (size_t i = 0; i < slice.size(); ++i) x[i] = logits[slice[i]] / temperature;
    cpu::ExpRow(x, max_x, static_cast<int64_t>(slice.size()), exponentials);
    for (size_t i = 0; i < slice.size(); ++i) weights[BucketOf(x[i], max_x)] += Weight(exponentials[i]);
  }
  return weights;
}

// Leaves in `kept` what top_p keeps of it.
void KeepTopP(absl::Span<const float> logits, const SamplerSettings& settings, float max_x,
              std::vector<int32_t>* kept) {
  const auto weights = BucketWeights(logits, settings.temperature, max_x, *kept);
  const uint64_t total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  const auto limit = static_cast<uint64_t>(static_cast<double>(settings.top_p) * static_cast<double>(total));
  uint64_t before = 0;
  int32_t crossing = 0;
  while (before + weights[crossing] < limit) before += weights[crossing++];

  const auto bucket = [&](int32_t id) { return BucketOf(logits[id] / settings.temperature, max_x); };
  const auto sort_begin =
      std::partition(kept->begin(), kept->end(), [&](int32_t id) { return bucket(id) < crossing; });
  const auto sort_end =
      std::partition(sort_begin, kept->end(), [&](int32_t id) { return bucket(id) == crossing; });
  std::sort(sort_begin, sort_end, Before(logits));
  auto end = sort_begin;
  while (end != sort_end && (end == kept->begin() || before < limit)) {
    before += Weight(Exp(logits[*end] / settings.temperature - max_x));
    ++end;
  }
  kept->erase(end, kept->end());
}

// The random words of ids: one call of the generator serves four neighbours.
class Noise {
 public:
  Noise(const SamplerSettings& settings, uint32_t position) : settings_(settings), position_(position) {}

  uint32_t WordOf(int32_t id) {
    const uint32_t group = static_cast<uint32_t>(id) >> 2;
    if (group != group_) {
      group_ = group;
      words_ = Philox4x32({group, position_, settings_.choice, static_cast<uint32_t>(DrawPurpose::kToken)},
                          settings_.seed);
    }
    return words_[id & 3];
  }

  // No less than GumbelFromWord(word): -ln(1 - v) >= v >= 2^-(leading zeros + 1). The constants leave room
  // for rounding.
  static float Bound(uint32_t word) {
    return 0.6932f * static_cast<float>(std::countl_zero(word) + 1) + 0.001f;
  }

 private:
  const SamplerSettings& settings_;
  const uint32_t position_;
  uint32_t group_ = UINT32_MAX;
  PhiloxCounter words_{};
};

}  // namespace

int32_t ArgMax(absl::Span<const float> logits) {
  const float max = cpu::RowMax(logits.data(), static_cast<int64_t>(logits.size()));
  const auto found = std::find(logits.begin(), logits.end(), max);
  return found == logits.end() ? 0 : static_cast<int32_t>(found - logits.begin());  // none equals NaN
}

int32_t SampleToken(absl::Span<const float> logits, const SamplerSettings& settings, uint32_t position,
                    std::vector<int32_t>* scratch) {
  const int32_t top = ArgMax(logits);
  const float max_x = logits[top] / settings.temperature;
  if (settings.temperature == 0.0f || settings.top_k == 1 || !std::isfinite(max_x)) return top;

  const float least_x = settings.min_p > 0.0f ? max_x + Log(settings.min_p) : -INFINITY;
  std::vector<int32_t>& kept = *scratch;
  kept.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] / settings.temperature >= least_x) kept.push_back(static_cast<int32_t>(id));
  }
  if (settings.top_k > 0 && static_cast<size_t>(settings.top_k) < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + settings.top_k, kept.end(), Before(logits));
    kept.resize(settings.top_k);
  }
  if (settings.top_p < 1.0f) KeepTopP(logits, settings, max_x, &kept);

  Noise noise(settings, position);
  int32_t best = top;  // whatever is kept, the top is
  float best_value = max_x + GumbelFromWord(noise.WordOf(top));
  for (int32_t id : kept) {
    // Most ids are ruled out before their noise is computed, many before their word is.
    const float x = logits[id] / settings.temperature;
    if (x + kMaxGumbel < best_value) continue;
    const uint32_t word = noise.WordOf(id);
    if (x + Noise::Bound(word) < best_value) continue;
    const float value = x + GumbelFromWord(word);
    if (value > best_value || (value == best_value && id < best)) {
      best = id;
      best_value = value;
    }
  }
  return best;
}

}  // namespace ridge::kernels
