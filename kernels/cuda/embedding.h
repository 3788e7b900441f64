// The residual stream's first value: a row of the embedding per token, widened to fp32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/half.h"

namespace ridge::kernels::cuda {

struct EmbeddingArgs {
  // [num_rows]. A negative entry -1 - s stands for the last token of slot s.
  const int32_t* tokens;
  const int32_t* last_tokens;  // [slots]; read where an entry is negative
  const Half* table;           // [vocab][hidden], packed (packing.h)
  float* residual;             // [num_rows][hidden]
  int32_t num_rows;
  int32_t hidden;          // a multiple of 16
  bool row_major = false;  // how the table stands instead of packed
};

[[nodiscard]] cudaError_t LaunchEmbedding(const EmbeddingArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
