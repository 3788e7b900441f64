// The whole model in plain loops: the oracle of backends. Slow, and meant to be read.
//
// In Mode::kContract it gives the bits of the CPU backend; in Mode::kFloat32 what the model's mathematics
// says, for comparison with recorded outputs of other implementations. Threads: a ReferenceModel may be
// shared; a sequence has one user.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/reference/ops.h"
#include "kernels/rope_table.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

class ReferenceModel {
 public:
  // Reads all weights as floats.
  ReferenceModel(const WeightSource& source, kernels::reference::Mode mode);

 private:
  friend class ReferenceSequence;

  struct Layer {
    std::vector<float> attention_norm, query, key, value, attention_output;
    std::vector<float> query_bias, key_bias, value_bias;  // empty where there are none
    std::vector<float> query_norm, key_norm;              // the same
    std::vector<float> mlp_norm, gate, up, down;
  };

  const std::vector<float>& output() const { return output_.empty() ? embedding_ : output_; }

  const kernels::reference::Mode mode_;
  const ModelConfig config_;
  const kernels::RopeTable rope_;
  std::vector<float> embedding_, final_norm_, output_;
  std::vector<Layer> layers_;
};

// The tokens of one sequence so far, with their keys and values.
class ReferenceSequence {
 public:
  // The model outlives the sequence.
  explicit ReferenceSequence(const ReferenceModel* model);

  // Goes on with these tokens. Returns the logits of the last `num_outputs` of them, [num_outputs][vocab].
  std::vector<float> Append(absl::Span<const int32_t> tokens, int64_t num_outputs);

 private:
  // One KV head's keys and values, [positions][head_dim].
  struct Cache {
    std::vector<float> keys, values;
  };

  void AppendToken(int32_t token);
  void Attention(int64_t layer);
  void Mlp(int64_t layer);
  std::vector<float> Multiply(const std::vector<float>& weights, const std::vector<float>& bias,
                              const std::vector<float>& x) const;
  std::vector<float> Norm(const std::vector<float>& weights) const;

  const ReferenceModel& model_;
  int64_t position_ = 0;         // of the token that is being appended
  std::vector<float> residual_;  // of that token
  std::vector<Cache> caches_;    // [layer][kv head]
};

}  // namespace ridge::worker
