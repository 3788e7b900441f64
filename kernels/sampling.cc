#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>

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

uint64_t Weight(float x, float max_x) {
  return static_cast<uint64_t>(Exp(x - max_x) * 0x1p40f);
}

// Leaves in `kept` what top_p keeps of it.
void KeepTopP(absl::Span<const float> logits, const SamplerSettings& settings, float max_x,
              std::vector<int32_t>* kept) {
  uint64_t total = 0;
  for (int32_t id : *kept) total += Weight(logits[id] / settings.temperature, max_x);
  const auto limit = static_cast<uint64_t>(static_cast<double>(settings.top_p) * static_cast<double>(total));
  // A heap gives the ids in order, and only as many as are needed.
  const auto after = [before = Before(logits)](int32_t a, int32_t b) { return before(b, a); };
  std::make_heap(kept->begin(), kept->end(), after);
  auto heap_end = kept->end();
  uint64_t mass = 0;
  do {
    std::pop_heap(kept->begin(), heap_end, after);
    --heap_end;
    mass += Weight(logits[*heap_end] / settings.temperature, max_x);
  } while (mass < limit && heap_end != kept->begin());
  kept->erase(kept->begin(), heap_end);
}

// The draw's state over ids: one call of the generator serves four neighbours.
class Noise {
 public:
  Noise(const SamplerSettings& settings, uint32_t position) : settings_(settings), position_(position) {}

  float Of(int32_t id) {
    const uint32_t group = static_cast<uint32_t>(id) >> 2;
    if (group != group_) {
      group_ = group;
      words_ = Philox4x32({group, position_, settings_.choice, static_cast<uint32_t>(DrawPurpose::kToken)},
                          settings_.seed);
    }
    return GumbelFromWord(words_[id & 3]);
  }

 private:
  const SamplerSettings& settings_;
  const uint32_t position_;
  uint32_t group_ = UINT32_MAX;
  PhiloxCounter words_{};
};

}  // namespace

int32_t ArgMax(absl::Span<const float> logits) {
  int32_t best = 0;
  for (size_t id = 1; id < logits.size(); ++id) {
    if (logits[id] > logits[best]) best = static_cast<int32_t>(id);
  }
  return best;
}

int32_t SampleToken(absl::Span<const float> logits, const SamplerSettings& settings, uint32_t position,
                    std::vector<int32_t>* scratch) {
  const int32_t top = ArgMax(logits);
  if (settings.temperature == 0.0f || settings.top_k == 1) return top;

  const float max_x = logits[top] / settings.temperature;
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
  float best_value = max_x + noise.Of(top);
  for (int32_t id : kept) {
    const float x = logits[id] / settings.temperature;
    if (x + kMaxGumbel < best_value) continue;  // no noise can lift it
    const float value = x + noise.Of(id);
    if (value > best_value || (value == best_value && id < best)) {
      best = id;
      best_value = value;
    }
  }
  return best;
}

}  // namespace ridge::kernels
