// A model's weights as the CPU kernels read them: matrices in panels of fp16, vectors as floats.
//
// Immutable after loading; any thread may read. A tied output matrix is the embedding's own memory: rows of
// the embedding are gathered from the panels.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/thread_pool.h"
#include "worker/backend/cpu/page_memory.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

// [n][k], packed as kernels/cpu/matmul.h says.
struct PackedMatrix {
  int64_t n = 0;
  int64_t k = 0;
  Half* panels = nullptr;  // in PackedWeights' memory
};

struct PackedLayer {
  std::vector<float> attention_norm;  // [hidden]
  PackedMatrix qkv;                   // rows [q | k | v], [q_size + 2 kv_size][hidden]
  std::vector<float> qkv_bias;        // the same rows; empty where the model has none
  std::vector<float> query_norm;      // [head_dim], for each head; empty where the model has none
  std::vector<float> key_norm;        // the same
  PackedMatrix attention_output;      // [hidden][q_size]
  std::vector<float> mlp_norm;        // [hidden]
  PackedMatrix gate;                  // [mlp][hidden]
  PackedMatrix up;                    // [mlp][hidden]
  PackedMatrix down;                  // [hidden][mlp]
};

class PackedWeights {
 public:
  // Reads everything on all threads of the pool. Errors of the source, or RESOURCE_EXHAUSTED.
  static absl::StatusOr<PackedWeights> Load(const WeightSource& source, kernels::cpu::ThreadPool* pool);

  const std::vector<PackedLayer>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const PackedMatrix& output() const { return output_.n == 0 ? embedding_ : output_; }
  int64_t bytes() const { return memory_.size_bytes(); }

  // Writes the embedding of one token, [hidden].
  void EmbeddingRow(int32_t token, float* out) const;

 private:
  absl::Status Allocate(const ModelConfig& config, kernels::cpu::ThreadPool* pool);
  // Puts rows of a tensor into their places. Calls for disjoint rows may run at once.
  void Put(const ModelConfig& config, TensorId id, int64_t row_begin, absl::Span<const Half> rows);

  PageMemory memory_;       // of all matrices
  PackedMatrix embedding_;  // [vocab][hidden]
  PackedMatrix output_;     // empty where it is tied
  std::vector<PackedLayer> layers_;
  std::vector<float> final_norm_;
};

}  // namespace ridge::worker
