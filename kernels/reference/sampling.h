// The sampler's definition (kernels/sampling.h) written down plainly: sorts everything, skips nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sampling.h"

namespace ridge::kernels::reference {

// The ids that min_p, top_k and top_p leave, most likely first.
std::vector<int32_t> KeptIds(const std::vector<float>& logits, const SamplerSettings& settings);

int32_t SampleToken(const std::vector<float>& logits, const SamplerSettings& settings, uint32_t position);

}  // namespace ridge::kernels::reference
