// out[r][i] = fp16(gate / (1 + e^-gate) * up).
//
// Geometry: a thread a value, 256 a block, a column of blocks a row. Alignment: none. Shared memory: none.
// Bytes: 10 a value. FLOPs: about 20 a value. Reference: reference::SwiGlu (the same bits).
#include "kernels/cuda/silu_mul.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rounding.cuh"
#include "kernels/cuda/silu_mul.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) SiluMulKernel(SiluMulArgs args) {
  WaitForPriorKernel();
  LaunchNextKernel();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= args.size) return;
  const int64_t row = blockIdx.x;
  const int64_t from = row * args.row_stride + i * args.column_stride;
  const __half value = SaturateToHalf(SiluMul(args.gate[from], args.up[from]), args.saturations);
  args.out[row * args.size + i] = __half_as_ushort(value);
}

}  // namespace

cudaError_t LaunchSiluMul(const SiluMulArgs& args, cudaStream_t stream) {
  const dim3 grid(args.num_rows, (args.size + kThreads - 1) / kThreads);
  return LaunchDependent(SiluMulKernel, grid, kThreads, 0, stream, args);
}

}  // namespace ridge::kernels::cuda
