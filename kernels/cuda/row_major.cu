// Geometry: a thread for two neighbouring elements, 256 a block. Bytes: 2 an element. Reference:
// worker/model/synthetic.h (the same bits).
#include "kernels/cuda/row_major.h"

#include "kernels/cuda/synthetic.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    GenerateRowsKernel(SyntheticTensor tensor, int64_t num_pairs, uint32_t* out) {
  const int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair >= num_pairs) return;
  const uint64_t index = static_cast<uint64_t>(pair) * 2;
  out[pair] = SyntheticBits(tensor, index) | SyntheticBits(tensor, index + 1) << 16;
}

}  // namespace

cudaError_t LaunchGenerateRows(const SyntheticTensor& tensor, int64_t count, Half* out, cudaStream_t stream) {
  if (count % 2 != 0) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((count / 2 + kThreads - 1) / kThreads);
  GenerateRowsKernel<<<blocks, kThreads, 0, stream>>>(tensor, count / 2, reinterpret_cast<uint32_t*>(out));
  return cudaGetLastError();
}

}  // namespace ridge::kernels::cuda
