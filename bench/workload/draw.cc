#include "bench/workload/draw.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "bench/workload/python_random.h"

namespace ridge::bench {
namespace {

constexpr int32_t kPromptTokens[] = {16, 64, 256, 1024, 4096};
constexpr int32_t kBudgets[] = {64, 128, 192, 256};

}  // namespace

std::string PromptLabel(int32_t prompt_tokens) {
  return absl::StrCat("p", prompt_tokens);
}

Workload UniformDraw(int32_t prompt_tokens, int32_t max_tokens, int32_t count) {
  Workload workload{
      absl::StrCat(PromptLabel(prompt_tokens), "-x", count),
      absl::StrCat("uniform, ", count, " requests of ", prompt_tokens, " + ", max_tokens, " tokens"),
      {}};
  workload.items.assign(count, {PromptLabel(prompt_tokens), prompt_tokens, max_tokens, 0, {}});
  return workload;
}

Workload MixedDraw(uint64_t seed, int32_t count) {
  Workload workload{absl::StrCat("mixed-", seed == 0 ? "" : absl::StrCat("s", seed, "-"), "x", count),
                    absl::StrCat("mixed, seed ", seed, ", ", count, " requests"),
                    {}};
  PythonRandom random(seed);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t prompt_tokens = kPromptTokens[random.Below(std::size(kPromptTokens))];
    const int32_t budget = kBudgets[random.Below(std::size(kBudgets))];
    workload.items.push_back({PromptLabel(prompt_tokens), prompt_tokens, budget, 0, {}});
  }
  return workload;
}

void SetArrivals(const Arrivals& arrivals, Workload* workload) {
  PythonRandom random(arrivals.seed);
  const auto count = static_cast<double>(workload->items.size());
  const bool constant = arrivals.first_rate == arrivals.last_rate;
  double at = 0;
  for (size_t i = 0; i < workload->items.size(); ++i) {
    const double gap = arrivals.burstiness == 1 ? random.Exponential(1) : random.Gamma(arrivals.burstiness);
    // With one rate the sum is divided, so that runs at several rates are the same trace scaled.
    const double progress = count > 1 ? static_cast<double>(i) / (count - 1) : 0;
    const double rate = arrivals.first_rate + (arrivals.last_rate - arrivals.first_rate) * progress;
    at += constant ? gap : gap / rate;
    workload->items[i].arrival_s = constant ? at / rate : at;
  }
  absl::StrAppend(&workload->origin, "; arrivals at ", arrivals.first_rate,
                  constant ? "" : absl::StrCat(" to ", arrivals.last_rate), "/s, burstiness ",
                  arrivals.burstiness, ", seed ", arrivals.seed);
}

}  // namespace ridge::bench
