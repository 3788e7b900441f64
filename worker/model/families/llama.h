// Llama 2 and 3.x, SmolLM2 and what else is published as LlamaForCausalLM.
#pragma once

#include "worker/model/family.h"

namespace ridge::worker {

inline constexpr ModelFamily kLlama = {
    .name = "llama",
    .hf_architecture = "LlamaForCausalLM",
    .gguf_permutes_qk = true,
};

}  // namespace ridge::worker
