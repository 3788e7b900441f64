// A model's weights in the card's memory: matrices packed as the matmul kernels read them, vectors as floats.
//
// One allocation; immutable after loading. A tied output matrix is the embedding's own memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

// [n][k], packed unless the layout says otherwise.
struct CudaMatrix {
  Half* packed = nullptr;
  int32_t n = 0;
  int32_t k = 0;
};

enum class MatrixLayout {
  kPacked,    // in tiles, rows placed for the epilogues of our matmuls (kernels/cuda/packing.h)
  kRowMajor,  // one row after the other, as they are named below: for a library
};

struct CudaLayer {
  const float* attention_norm;  // [hidden]
  CudaMatrix
      qkv;  // rows [q | k | v], rotated pairs together (RowPlacement::kRotary) unless q and k are normed
  const float* qkv_bias;        // in the order of qkv's packed rows; null where the model has none
  const float* query_norm;      // [head_dim]; null where the model has none, as key_norm
  const float* key_norm;        // [head_dim]
  CudaMatrix attention_output;  // [hidden][q_size]
  const float* mlp_norm;        // [hidden]
  CudaMatrix gate_up;           // [2 mlp][hidden]: rows of gate, then of up; packed: 8 and 8 in turn
  CudaMatrix down;              // [hidden][mlp]
};

class CudaWeights {
 public:
  // Reads through pinned staging memory, or lets the card make the weights where the source is synthetic.
  // Returns when all is in place. Errors of the source, or RESOURCE_EXHAUSTED.
  static absl::StatusOr<CudaWeights> Load(const WeightSource& source, cudaStream_t stream,
                                          MatrixLayout layout = MatrixLayout::kPacked);

  MatrixLayout layout() const { return layout_; }

  const CudaMatrix& embedding() const { return embedding_; }
  const CudaMatrix& output() const { return output_.n == 0 ? embedding_ : output_; }
  const std::vector<CudaLayer>& layers() const { return layers_; }
  const float* final_norm() const { return final_norm_; }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  class Loader;

  // Gives every matrix and vector its place from `base` on; returns the bytes that they take. Called with
  // null first.
  int64_t Place(const ModelConfig& config, char* base);

  MatrixLayout layout_ = MatrixLayout::kPacked;
  DeviceMemory memory_;
  CudaMatrix embedding_;
  CudaMatrix output_;
  std::vector<CudaLayer> layers_;
  const float* final_norm_ = nullptr;
};

}  // namespace ridge::worker
