// For each row and head of q and k: (RMSNorm over the head,) then with i < d / 2, j = i + d / 2
//   out_i = fp16(fma(x_i, cos_i, -(x_j sin_i))), out_j = fp16(fma(x_j, cos_i, x_i sin_i));
// v is rounded. Queries go to rows, keys and values to the KV pool: block_tables[slot][position / 16].
//
// Geometry: a warp a row and head, 8 warps a block; a lane takes neighbouring pairs: 8-byte loads, 4-byte
// stores. Alignment: qkv 8 bytes, q and pool 4 bytes. Shared memory: none. Bytes: 6 a value and 4 d a row for
// the angles. FLOPs: 3 a value of q and k. Reference: reference::RmsNorm without the rounding,
// reference::RotateHead, reference::RoundRow (the same bits).
#include "kernels/cuda/rope_kv.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rotate.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kWarps = 8;

struct HeadNorm {
  const float* weight;  // null: none
  float scale;

  __device__ float2 Apply(float2 x, int i) const {
    if (weight == nullptr) return x;
    return make_float2(NormValue(x.x, scale, weight[i]), NormValue(x.y, scale, weight[i + 1]));
  }
};

__device__ HeadNorm MakeHeadNorm(const float* weight, const float* x, int head_dim, float eps, int lane) {
  if (weight == nullptr) return {nullptr, 1.0f};
  float sum = NormGroupSum(x, lane < kVirtualLanes ? head_dim : 0, lane % kVirtualLanes);
  sum = __shfl_sync(0xFFFFFFFFu, sum, 0);
  return {weight, NormScale(&sum, head_dim, eps)};
}

__device__ void RotateHead(const RopeKvArgs& args, const float* x, const HeadNorm& norm, int position,
                           int lane, Half* out) {
  const int half = args.head_dim / 2;
  const float* cosines = args.cosines + static_cast<int64_t>(position) * half;
  const float* sines = args.sines + static_cast<int64_t>(position) * half;
  for (int i = 2 * lane; i < half; i += 2 * kWarpThreads) {
    float2 low = norm.Apply(*reinterpret_cast<const float2*>(x + i), i);
    float2 high = norm.Apply(*reinterpret_cast<const float2*>(x + half + i), half + i);
    const float2 c = *reinterpret_cast<const float2*>(cosines + i);
    const float2 s = *reinterpret_cast<const float2*>(sines + i);
    Rotate(c.x, s.x, &low.x, &high.x);
    Rotate(c.y, s.y, &low.y, &high.y);
    *reinterpret_cast<__half2*>(out + i) = SaturateToHalf2(low.x, low.y, args.saturations);
    *reinterpret_cast<__half2*>(out + half + i) = SaturateToHalf2(high.x, high.y, args.saturations);
  }
}

__global__ void __launch_bounds__(kWarps* kWarpThreads) RopeKvKernel(RopeKvArgs args) {
  WaitForPriorKernel();
  LaunchNextKernel();
  const int heads = args.num_heads + 2 * args.num_kv_heads;
  const int lane = threadIdx.x % kWarpThreads;
  const int task = blockIdx.x * kWarps + threadIdx.x / kWarpThreads;
  const int row = task / heads, head = task % heads;
  if (row >= args.num_rows) return;
  const int d = args.head_dim;
  const float* x = args.qkv + (static_cast<int64_t>(row) * heads + head) * d;
  const int position = args.positions[row];
  if (head < args.num_heads) {
    const HeadNorm norm = MakeHeadNorm(args.q_norm, x, d, args.norm_eps, lane);
    RotateHead(args, x, norm, position, lane,
               args.q + (static_cast<int64_t>(row) * args.num_heads + head) * d);
    return;
  }
  const int slot = args.slots[row];
  if (slot < 0) return;
  const int block =
      args.block_tables[static_cast<int64_t>(slot) * args.table_stride + position / kKvBlockTokens];
  const bool is_key = head < args.num_heads + args.num_kv_heads;
  const int kv_head = (head - args.num_heads) % args.num_kv_heads;
  Half* out = args.kv.pool + block * args.kv.block_stride +
              (is_key ? args.kv.key_offset : args.kv.value_offset) +
              (static_cast<int64_t>(kv_head) * kKvBlockTokens + position % kKvBlockTokens) * d;
  if (is_key) {
    const HeadNorm norm = MakeHeadNorm(args.k_norm, x, d, args.norm_eps, lane);
    RotateHead(args, x, norm, position, lane, out);
    return;
  }
  for (int i = 2 * lane; i < d; i += 2 * kWarpThreads) {
    const float2 value = *reinterpret_cast<const float2*>(x + i);
    *reinterpret_cast<__half2*>(out + i) = SaturateToHalf2(value.x, value.y, args.saturations);
  }
}

}  // namespace

cudaError_t LaunchRopeKv(const RopeKvArgs& args, cudaStream_t stream) {
  if (args.head_dim % kVirtualLanes != 0 || args.head_dim > kNormGroup) return cudaErrorInvalidValue;
  const int tasks = args.num_rows * (args.num_heads + 2 * args.num_kv_heads);
  return LaunchDependent(RopeKvKernel, (tasks + kWarps - 1) / kWarps, kWarps * kWarpThreads, 0, stream, args);
}

}  // namespace ridge::kernels::cuda
