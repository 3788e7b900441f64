// Qwen3, dense.
#pragma once

#include "worker/model/family.h"

namespace ridge::worker {

inline constexpr ModelFamily kQwen3 = {
    .name = "qwen3",
    .hf_architecture = "Qwen3ForCausalLM",
    .qk_norm = true,
    .head_dim = 128,
};

}  // namespace ridge::worker
