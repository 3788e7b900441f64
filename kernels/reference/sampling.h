// The definitions of kernels/logit_controls.h and kernels/sampling.h written down plainly: sorts everything,
// skips nothing.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "kernels/logit_controls.h"
#include "kernels/sampling.h"

namespace ridge::kernels::reference {

// As a request says it.
struct Controls {
  Penalties penalties = {};
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
  std::map<int32_t, float> bias = {};
  std::set<int32_t> allowed = {};  // empty: all
  std::set<int32_t> banned = {};
};

std::vector<float> Controlled(std::vector<float> logits, const Controls& controls);

// Ids from the largest logit to the smallest, of equal ones the lowest first.
std::vector<int32_t> Ranking(const std::vector<float>& logits);

// The ids that min_p, top_k and top_p leave, most likely first.
std::vector<int32_t> KeptIds(const std::vector<float>& logits, const SamplerSettings& settings);

int32_t SampleToken(const std::vector<float>& logits, const SamplerSettings& settings, uint32_t position);

}  // namespace ridge::kernels::reference
