// Geometry: a thread for two neighbouring elements (4 bytes), 256 a block. Bytes: 4 an element (packing), 2
// (generating).
#include "kernels/cuda/packing.h"

#include "kernels/cuda/synthetic.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ uint32_t* PlaceOf(const PackTarget& target, int64_t row, int64_t column) {
  const int64_t packed_row = target.row_begin + PackedRow(target.placement, row, target.head_dim);
  return reinterpret_cast<uint32_t*>(target.packed + PackedIndex(packed_row, column, target.k));
}

__global__ void __launch_bounds__(kThreads)
    PackRowsKernel(const Half* rows, int64_t first_row, int64_t num_pairs, PackTarget target) {
  const int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair >= num_pairs) return;
  const int64_t row = pair * 2 / target.k, column = pair * 2 % target.k;
  *PlaceOf(target, first_row + row, column) = reinterpret_cast<const uint32_t*>(rows)[pair];
}

__global__ void __launch_bounds__(kThreads)
    PackSyntheticKernel(SyntheticTensor tensor, int64_t num_pairs, PackTarget target) {
  const int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair >= num_pairs) return;
  const uint64_t index = static_cast<uint64_t>(pair) * 2;
  *PlaceOf(target, pair * 2 / target.k, pair * 2 % target.k) =
      SyntheticBits(tensor, index) | SyntheticBits(tensor, index + 1) << 16;
}

unsigned NumBlocks(int64_t pairs) {
  return static_cast<unsigned>((pairs + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t LaunchPackRows(const Half* rows, int64_t first_row, int64_t num_rows, const PackTarget& target,
                           cudaStream_t stream) {
  if (target.k % kTileDepth != 0) return cudaErrorInvalidValue;
  const int64_t pairs = num_rows * target.k / 2;
  PackRowsKernel<<<NumBlocks(pairs), kThreads, 0, stream>>>(rows, first_row, pairs, target);
  return cudaGetLastError();
}

cudaError_t LaunchPackSynthetic(const SyntheticTensor& tensor, int64_t num_rows, const PackTarget& target,
                                cudaStream_t stream) {
  if (target.k % kTileDepth != 0) return cudaErrorInvalidValue;
  const int64_t pairs = num_rows * target.k / 2;
  PackSyntheticKernel<<<NumBlocks(pairs), kThreads, 0, stream>>>(tensor, pairs, target);
  return cudaGetLastError();
}

}  // namespace ridge::kernels::cuda
