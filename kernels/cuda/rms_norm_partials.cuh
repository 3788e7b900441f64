// The norm of a row to which chunk sums are added first, as a device function: its own kernel and the MLP's
// share it, and with it the bits.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rms_norm.h"

namespace ridge::kernels::cuda {

// Columns i .. i + 3 of a row to their place in out.
__device__ inline void WriteNormed(const RmsNormArgs& args, int64_t out_row, int i, const float4& value,
                                   const float4& weight, float scale) {
  const __half2 pair[2] = {SaturateToHalf2(NormValue(value.x, scale, weight.x),
                                           NormValue(value.y, scale, weight.y), args.saturations),
                           SaturateToHalf2(NormValue(value.z, scale, weight.z),
                                           NormValue(value.w, scale, weight.w), args.saturations)};
  *reinterpret_cast<uint2*>(args.out + out_row * args.size + i) = *reinterpret_cast<const uint2*>(pair);
}

__device__ inline float4 AddColumns(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

// Row out_row of `out`, of up to kMaxSize columns, by kThreads threads that count from `thread` 0: the chunk
// sums are asked for at once, the weights before `wait` returns, behind which the sums are there. `values`
// [kMaxSize] and `sums` [its groups] in shared memory; `sync` is a barrier of the threads.
template <int kThreads, int kMaxSize, typename Wait, typename Sync>
__device__ inline void NormWithPartials(const RmsNormArgs& args, int64_t out_row, int thread, float* values,
                                        float* sums, const Wait& wait, const Sync& sync) {
  constexpr int kTurns = (kMaxSize + kThreads * 4 - 1) / (kThreads * 4);
  float4 weights[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = (turn * kThreads + thread) * 4;
    if (i < args.size) weights[turn] = *reinterpret_cast<const float4*>(args.weight + i);
  }
  wait();
  const int64_t row = args.rows == nullptr ? out_row : args.rows[out_row];
  const int64_t stride = static_cast<int64_t>(args.partial_rows) * args.size;
  for (int i = thread * 4; i < args.size; i += kThreads * 4) {
    const int64_t at = row * args.size + i;
    float4 parts[kMaxNormPartials];
    const float4 x = *reinterpret_cast<const float4*>(args.x + at);
#pragma unroll
    for (int chunk = 0; chunk < kMaxNormPartials; ++chunk) {
      if (chunk < args.num_partials)
        parts[chunk] = *reinterpret_cast<const float4*>(args.partials + chunk * stride + at);
    }
    float4 sum = parts[0];
#pragma unroll
    for (int chunk = 1; chunk < kMaxNormPartials; ++chunk) {
      if (chunk < args.num_partials) sum = AddColumns(sum, parts[chunk]);
    }
    sum = AddColumns(x, sum);
    *reinterpret_cast<float4*>(args.y + at) = sum;
    *reinterpret_cast<float4*>(values + i) = sum;
  }
  sync();
  NormGroupSums(values, args.size, thread, kThreads, sums);
  sync();
  const float scale = NormScale(sums, args.size, args.eps);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = (turn * kThreads + thread) * 4;
    if (i < args.size)
      WriteNormed(args, out_row, i, *reinterpret_cast<const float4*>(values + i), weights[turn], scale);
  }
}

}  // namespace ridge::kernels::cuda
