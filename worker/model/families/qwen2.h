// Qwen2 and Qwen2.5, dense.
#pragma once

#include "worker/model/family.h"

namespace ridge::worker {

inline constexpr ModelFamily kQwen2 = {
    .name = "qwen2",
    .hf_architecture = "Qwen2ForCausalLM",
    .qkv_bias = true,
};

}  // namespace ridge::worker
