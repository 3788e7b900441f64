#include "kernels/reference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/math.h"
#include "kernels/philox.h"

namespace ridge::kernels::reference {

std::vector<float> Controlled(std::vector<float> logits, const Controls& controls) {
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    const auto in_prompt = std::count(controls.prompt.begin(), controls.prompt.end(), id);
    const auto in_output = std::count(controls.output.begin(), controls.output.end(), id);
    float& logit = logits[id];
    if (in_prompt + in_output > 0) {
      logit = logit > 0 ? logit / controls.penalties.repetition : logit * controls.penalties.repetition;
    }
    if (in_output > 0) {
      logit -= controls.penalties.frequency * static_cast<float>(in_output);
      logit -= controls.penalties.presence;
    }
    if (const auto bias = controls.bias.find(id); bias != controls.bias.end()) logit += bias->second;
    const bool allowed = controls.allowed.empty() || controls.allowed.contains(id);
    if (!allowed || controls.banned.contains(id)) logit = -INFINITY;
  }
  return logits;
}

std::vector<int32_t> Ranking(const std::vector<float>& logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

std::vector<int32_t> KeptIds(const std::vector<float>& logits, const SamplerSettings& settings) {
  std::vector<int32_t> ids = Ranking(logits);
  const auto x = [&](int32_t id) { return logits[id] / settings.temperature; };
  const float max_x = x(ids[0]);
  if (settings.min_p > 0.0f) {
    const float least = max_x + Log(settings.min_p);
    std::erase_if(ids, [&](int32_t id) { return x(id) < least; });
  }
  if (settings.top_k > 0 && ids.size() > static_cast<size_t>(settings.top_k)) ids.resize(settings.top_k);
  if (settings.top_p < 1.0f) {
    std::vector<uint64_t> weights;
    for (int32_t id : ids) weights.push_back(static_cast<uint64_t>(Exp(x(id) - max_x) * 0x1p40f));
    const uint64_t total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    const auto limit =
        static_cast<uint64_t>(static_cast<double>(settings.top_p) * static_cast<double>(total));
    size_t count = 0;
    uint64_t before = 0;
    while (count < ids.size() && (count == 0 || before < limit)) before += weights[count++];
    ids.resize(count);
  }
  return ids;
}

int32_t SampleToken(const std::vector<float>& logits, const SamplerSettings& settings, uint32_t position) {
  if (settings.temperature == 0.0f) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  int32_t best = -1;
  float best_value = -INFINITY;
  for (int32_t id : KeptIds(logits, settings)) {
    const PhiloxCounter counter = {static_cast<uint32_t>(id) / 4, position, settings.choice,
                                   static_cast<uint32_t>(DrawPurpose::kToken)};
    const float noise = GumbelFromWord(Philox4x32(counter, settings.seed)[id % 4]);
    const float value = logits[id] / settings.temperature + noise;
    if (best < 0 || value > best_value || (value == best_value && id < best)) {
      best = id;
      best_value = value;
    }
  }
  return best;
}

}  // namespace ridge::kernels::reference
