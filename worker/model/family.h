// What tells one family of models from another. All are decoders with RMS norms, rotary positions, grouped
// attention and a SwiGLU MLP; a family is a handful of facts about that shape and about how files spell it.
// Each is one file in families/, listed in family.cc. Immutable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ridge::worker {

struct ModelFamily {
  // ModelConfig::architecture, general.architecture and the prefix of keys in GGUF, model_type in
  // config.json.
  const char* name;
  // The one entry of architectures in config.json.
  const char* hf_architecture;
  // Biases on q, k and v, which config.json does not mention. (A GGUF file has them where it has their
  // tensors.)
  bool qkv_bias = false;
  // RMS norms of each head's q and k.
  bool qk_norm = false;
  // head_dim where config.json has none; 0: hidden_size / num_attention_heads.
  int32_t head_dim = 0;
  // Whether converters to GGUF reorder the rows of q and k so that rotary pairs are neighbours.
  bool gguf_permutes_qk = false;
};

absl::Span<const ModelFamily* const> ModelFamilies();

// nullptr where there is none.
const ModelFamily* FindFamily(absl::string_view name);

// "llama, qwen2 and qwen3", for messages.
std::string FamilyNames();

}  // namespace ridge::worker
