// Where a backend reads weights from: one interface over safetensors, GGUF and synthetic models.
//
// Tensors are named by role and layer, and are always row-major [rows][cols] fp16 with the output dimension
// as rows, in Hugging Face's layout (rotary pairs are (i, i + head_dim / 2); a file with another row order is
// undone here). Threads: all const members may be called from many threads at once. Ownership: the source
// owns its mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

// fp16 as its bits.
using Half = uint16_t;

// Their numbers are part of synthetic weights' definition: a new one goes to the end.
enum class TensorRole {
  kTokenEmbedding,   // [vocab][hidden]
  kAttentionNorm,    // [1][hidden]
  kQuery,            // [heads * head_dim][hidden]
  kKey,              // [kv_heads * head_dim][hidden]
  kValue,            // [kv_heads * head_dim][hidden]
  kQueryBias,        // [1][heads * head_dim]
  kKeyBias,          // [1][kv_heads * head_dim]
  kValueBias,        // [1][kv_heads * head_dim]
  kAttentionOutput,  // [hidden][heads * head_dim]
  kMlpNorm,          // [1][hidden]
  kGate,             // [mlp][hidden]
  kUp,               // [mlp][hidden]
  kDown,             // [hidden][mlp]
  kFinalNorm,        // [1][hidden]
  kOutput,           // [vocab][hidden]; absent where the embedding is tied
  kQueryNorm,        // [1][head_dim], of every query head
  kKeyNorm,          // [1][head_dim], of every KV head
};
inline constexpr size_t kNumTensorRoles = 17;

struct TensorId {
  TensorRole role;
  int32_t layer = 0;  // 0 for tensors outside the layers
};

struct TensorShape {
  int64_t rows;
  int64_t cols;

  int64_t size() const { return rows * cols; }
};

// The shape that `config` gives to a tensor.
TensorShape ShapeOf(const ModelConfig& config, TensorId id);

// Every tensor that a model of this configuration stores, in the order of use.
std::vector<TensorId> TensorsOf(const ModelConfig& config);

// Whether the tensor belongs to a layer (its name then carries the layer's number).
bool IsLayerTensor(TensorRole role);

// A made-up tensor (synthetic.h): element `index` is fp16(float(offset + (integer >> shift)) * scale), where integer follows
// from Mix(key + index * 0x9E3779B97F4A7C15). A device can make it where it needs it.
struct GeneratedTensor {
  uint64_t key;
  float scale;
  int32_t offset;
  int32_t shift;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& config() const = 0;

  // Writes rows [row_begin, row_begin + row_count) of a tensor to out, which holds row_count * cols elements.
  // All tensors of config() exist with the right shapes (checked when the source was opened). Errors:
  // DATA_LOSS or INVALID_ARGUMENT naming file and tensor, for a value that fp16 cannot hold for instance.
  virtual absl::Status ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                                absl::Span<Half> out) const = 0;

  // How a made-up tensor is made; nothing for tensors that are read from a file.
  virtual std::optional<GeneratedTensor> Generated(TensorId) const { return std::nullopt; }

  // Hints of a reader that takes every tensor once: rows that come soon, rows that come next, and rows that
  // were read and need no memory any more.
  virtual void Prefetch(TensorId /*id*/, int64_t /*row_begin*/, int64_t /*row_count*/) const {}
  virtual void Populate(TensorId /*id*/, int64_t /*row_begin*/, int64_t /*row_count*/) const {}
  virtual void Drop(TensorId /*id*/, int64_t /*row_begin*/, int64_t /*row_count*/) const {}

  // Over everything that decides the model's outputs: configuration, tokenizer and every weight byte; in hex.
  // The definition is in docs/contracts.md. Weights are hashed as they are read: what ReadRows took in runs
  // that begin at a multiple of kLeafRows and end at one, or at the tensor's end, costs no second pass. After
  // the last read.
  static constexpr int64_t kLeafRows = 128;
  virtual std::string Fingerprint() const = 0;
};

}  // namespace ridge::worker
