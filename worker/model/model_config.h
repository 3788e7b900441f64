// The shape of a decoder-only transformer, whatever file it came from. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

struct ModelConfig {
  std::string name;                    // for people: "SmolLM2-135M-Instruct"
  std::string architecture = "llama";  // its family's name; what families differ in is in the fields below
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_heads = 0;     // query heads
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;
  int32_t mlp_size = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // positions the model was trained for
  float norm_eps = 1e-5f;
  float rope_theta = 10000.0f;
  // What divides each of the head_dim / 2 rotary frequencies; empty where positions are not scaled.
  std::vector<double> rope_divisors;
  bool qkv_bias = false;
  bool qk_norm = false;         // RMS norm of each head's q and k, before the rotation
  bool tied_embedding = false;  // the output matrix is the embedding
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;  // -1: none

  int32_t q_size() const { return num_heads * head_dim; }
  int32_t kv_size() const { return num_kv_heads * head_dim; }
  // Stored weights; a tied matrix counts once.
  int64_t num_parameters() const;
  // K and V of one token over all layers, fp16.
  int64_t kv_bytes_per_token() const { return int64_t{2} * 2 * num_layers * kv_size(); }
};

// What a file calls a field of ModelConfig.
using FieldKey = absl::FunctionRef<std::string(absl::string_view field)>;

// INVALID_ARGUMENT naming `origin` and the field by its key there, where a field is missing, contradicts
// another or is larger than any model that the kernels are made for. Every loader ends with it.
absl::Status ValidateConfig(const ModelConfig& config, const std::string& origin, FieldKey key);

// Every field that decides outputs, in one line with exact numbers: what fingerprints are made of. The name
// is left out.
std::string CanonicalText(const ModelConfig& config);

}  // namespace ridge::worker
