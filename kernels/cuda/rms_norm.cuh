// RMSNorm as device functions: the standalone kernel and the prologues of matmuls share them, and with them
// the bits.
//
// out[i] = fp16(x[i] * scale * weight[i]), scale = 1 / sqrt(sum of squares / size + eps). The squares are
// summed per group of kNormGroup (256) columns in kVirtualLanes (16) chains of fused multiply-adds, column i
// in chain i % 16; chains are added by halves, groups in ascending order. kernels/cpu does the same: equal
// bits.
#pragma once

#include "kernels/cuda/rounding.cuh"
#include "kernels/math.h"
#include "kernels/order.h"

namespace ridge::kernels::cuda {

// Groups of a row: what `sums` below must hold.
__host__ __device__ constexpr int NormGroups(int size) {
  return (size + kNormGroup - 1) / kNormGroup;
}

// The sum of squares of `count` <= 256 columns (a multiple of 16), by the 16 threads of half a warp; valid in
// the one with lane 0. All 32 threads of the warp call it, each half with its own columns (or count 0).
__device__ inline float NormGroupSum(const float* columns, int count, int lane) {
  float values[kNormGroup / kVirtualLanes];
#pragma unroll
  for (int i = 0; i < kNormGroup / kVirtualLanes; ++i) {
    values[i] = i * kVirtualLanes < count ? columns[i * kVirtualLanes + lane] : 0.0f;
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormGroup / kVirtualLanes; ++i) {
    if (i * kVirtualLanes < count) sum = __fmaf_rn(values[i], values[i], sum);
  }
#pragma unroll
  for (int width = kVirtualLanes / 2; width >= 1; width /= 2) {
    sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width, kVirtualLanes));
  }
  return sum;
}

// The same of columns that the threads hold: values[i] is column i * kVirtualLanes + lane, 0 behind the last.
__device__ inline float NormHeldSum(const float (&values)[kNormGroup / kVirtualLanes]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormGroup / kVirtualLanes; ++i)
    sum = __fmaf_rn(values[i], values[i], sum);  // zeros behind the last change nothing
#pragma unroll
  for (int width = kVirtualLanes / 2; width >= 1; width /= 2) {
    sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width, kVirtualLanes));
  }
  return sum;
}

// The groups' sums of one row to sums[NormGroups(size)] in shared memory, by `threads` threads (whole warps)
// that count from `thread` 0. The caller synchronises them before NormScale.
__device__ inline void NormGroupSums(const float* x, int size, int thread, int threads, float* sums) {
  const int lane = thread % kVirtualLanes;
  const int halves = threads / kVirtualLanes;
  const int groups = NormGroups(size);
  // Rounded up to an even number: both halves of a warp take every turn.
  for (int group = thread / kVirtualLanes; group < (groups + 1) / 2 * 2; group += halves) {
    const int begin = group * kNormGroup;
    const int count = group < groups ? min(kNormGroup, size - begin) : 0;
    const float sum = NormGroupSum(x + begin, count, lane);
    if (lane == 0 && group < groups) sums[group] = sum;
  }
}

// `sum`: of all squares.
__device__ inline float NormScale(float sum, int size, float eps) {
  return Rsqrt(__fadd_rn(__fdiv_rn(sum, static_cast<float>(size)), eps));
}

__device__ inline float NormScale(const float* sums, int size, float eps) {
  float sum = 0.0f;
  for (int group = 0; group < NormGroups(size); ++group) sum = __fadd_rn(sum, sums[group]);
  return NormScale(sum, size, eps);
}

// Before rounding.
__device__ inline float NormValue(float x, float scale, float weight) {
  return __fmul_rn(__fmul_rn(x, scale), weight);
}

}  // namespace ridge::kernels::cuda
