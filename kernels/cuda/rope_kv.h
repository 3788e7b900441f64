// From the QKV matmul's fp32 rows to fp16 queries and to keys and values in the paged KV pool.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kv_layer.h"
#include "kernels/half.h"

namespace ridge::kernels::cuda {

struct RopeKvArgs {
  const float* qkv;     // [num_rows][(num_heads + 2 num_kv_heads) head_dim]: q, k, v; bias added
  const float* q_norm;  // [head_dim]: RMSNorm of each query head before the rotation; null: none
  const float* k_norm;  // [head_dim], likewise
  float norm_eps;
  const float* cosines;         // [positions][head_dim / 2]
  const float* sines;           // [positions][head_dim / 2]
  const int32_t* positions;     // [num_rows]
  const int32_t* slots;         // [num_rows]; a negative one: a padding row, whose K and V are not stored
  const int32_t* block_tables;  // [slots][table_stride]
  int32_t table_stride;
  int32_t num_rows;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;  // a multiple of 16, at most 256
  KvLayer kv;
  Half* q;  // [num_rows][num_heads head_dim]
  unsigned long long* saturations;
};

[[nodiscard]] cudaError_t LaunchRopeKv(const RopeKvArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
