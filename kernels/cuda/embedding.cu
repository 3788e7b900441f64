// residual[r][i] = table[tokens[r]][i], fp16 to fp32 (exact); the table is packed as lm_head reads it.
//
// Geometry: a block of 256 threads a row, 2 columns a thread and turn: 4-byte loads, 8-byte stores.
// Alignment: table 4 bytes, residual 8 bytes. Shared memory: none.
// Bytes: 12 hidden a row (of each 32-byte sector that is read, 8 bytes are the row's). FLOPs: none.
// Reference: worker/backend/cpu's PackedWeights::EmbeddingRow.
#include "kernels/cuda/embedding.h"

#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingArgs args) {
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.x;
  int32_t token = args.tokens[row];
  if (token < 0) token = args.last_tokens[-1 - token];
  float* to = args.residual + static_cast<int64_t>(row) * args.hidden;
  for (int i = 2 * threadIdx.x; i < args.hidden; i += 2 * kThreads) {
    const int64_t index =
        args.row_major ? int64_t{token} * args.hidden + i : PackedIndex(token, i, args.hidden);
    const Half* from = args.table + index;
    *reinterpret_cast<float2*>(to + i) = __half22float2(*reinterpret_cast<const __half2*>(from));
  }
}

}  // namespace

cudaError_t LaunchEmbedding(const EmbeddingArgs& args, cudaStream_t stream) {
  return LaunchDependent(EmbeddingKernel, args.num_rows, kThreads, 0, stream, args);
}

}  // namespace ridge::kernels::cuda
