// Geometry: a thread a change, 256 a block.
#include "kernels/cuda/slot_changes.h"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) SlotChangesKernel(SlotChangesArgs args) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < args.num_sampling_changes) {
    const SamplingChange& change = args.sampling_changes[i];
    args.slots[change.slot] = change.sampling;
  }
  if (i < args.num_block_changes) {
    const BlockChange change = args.block_changes[i];
    args.block_tables[static_cast<int64_t>(change.slot) * args.table_stride + change.index] = change.block;
  }
}

}  // namespace

cudaError_t LaunchSlotChanges(const SlotChangesArgs& args, cudaStream_t stream) {
  const int count =
      args.num_sampling_changes > args.num_block_changes ? args.num_sampling_changes : args.num_block_changes;
  if (count == 0) return cudaSuccess;
  SlotChangesKernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace ridge::kernels::cuda
