// out[r][i] = fp16(x[i] / sqrt(mean(x^2) + eps) * weight[i]) for x = row rows[r] of the residual stream.
//
// Geometry: a block of 256 threads a row; of 512 where a matmul's chunk sums are added first, all of which
// are asked for at once. Alignment: x, weight 16 bytes, out 8 bytes, size a multiple of 16. Shared memory: 1
// KiB, 33 KiB. Bytes: 4 size read (twice, the second time from L1), 2 size written a row, and the weight.
// FLOPs: 4 size a row. Reference: reference::RmsNorm (the same bits).
#include "kernels/cuda/rms_norm.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rms_norm_partials.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPartialThreads = 512;

__global__ void __launch_bounds__(kThreads) RmsNormKernel(RmsNormArgs args) {
  WaitForPriorKernel();
  LaunchNextKernel();
  __shared__ float sums[NormGroups(kMaxNormSize)];
  const int64_t row = args.rows == nullptr ? blockIdx.x : args.rows[blockIdx.x];
  const float* x = args.x + row * args.size;
  NormGroupSums(x, args.size, threadIdx.x, kThreads, sums);
  __syncthreads();
  const float scale = NormScale(sums, args.size, args.eps);
  for (int i = threadIdx.x * 4; i < args.size; i += kThreads * 4) {
    WriteNormed(args, blockIdx.x, i, *reinterpret_cast<const float4*>(x + i),
                *reinterpret_cast<const float4*>(args.weight + i), scale);
  }
}

// Rows of up to 16 groups: each half of a warp keeps one group in registers, so that a row is read once.
__global__ void __launch_bounds__(kThreads) RmsNormShortKernel(RmsNormArgs args) {
  constexpr int kValues = kNormGroup / kVirtualLanes;
  __shared__ float sums[kThreads / kVirtualLanes];
  const int group = threadIdx.x / kVirtualLanes, lane = threadIdx.x % kVirtualLanes;
  const int column = group * kNormGroup + lane;
  const int count = min(kNormGroup, max(args.size - group * kNormGroup, 0)) / kVirtualLanes;
  float weights[kValues], values[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) weights[i] = i < count ? args.weight[column + i * kVirtualLanes] : 0.0f;
  LaunchNextKernel();
  WaitForPriorKernel();
  const int64_t row = args.rows == nullptr ? blockIdx.x : args.rows[blockIdx.x];
  const float* x = args.x + row * args.size + column;
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = i < count ? x[i * kVirtualLanes] : 0.0f;
  const float sum = NormHeldSum(values);
  if (lane == 0) sums[group] = sum;
  __syncthreads();
  const float scale = NormScale(sums, args.size, args.eps);
  Half* out = args.out + static_cast<int64_t>(blockIdx.x) * args.size + column;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    if (i >= count) continue;
    const __half value = SaturateToHalf(NormValue(values[i], scale, weights[i]), args.saturations);
    out[i * kVirtualLanes] = __half_as_ushort(value);
  }
}

__global__ void __launch_bounds__(kPartialThreads) RmsNormPartialsKernel(RmsNormArgs args) {
  __shared__ __align__(16) float values[kMaxPartialSize];
  __shared__ float sums[NormGroups(kMaxPartialSize)];
  LaunchNextKernel();
  NormWithPartials<kPartialThreads, kMaxPartialSize>(
      args, blockIdx.x, threadIdx.x, values, sums, [] { WaitForPriorKernel(); }, [] { __syncthreads(); });
}

}  // namespace

cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.size % kVirtualLanes != 0 || args.size > kMaxNormSize) return cudaErrorInvalidValue;
  if (args.partials != nullptr) {
    if (args.size > kMaxPartialSize || args.num_partials < 1 || args.num_partials > kMaxNormPartials)
      return cudaErrorInvalidValue;
    return LaunchDependent(RmsNormPartialsKernel, args.num_rows, kPartialThreads, 0, stream, args);
  }
  const bool is_short = NormGroups(args.size) <= kThreads / kVirtualLanes;
  return LaunchDependent(is_short ? RmsNormShortKernel : RmsNormKernel, args.num_rows, kThreads, 0, stream,
                         args);
}

}  // namespace ridge::kernels::cuda
