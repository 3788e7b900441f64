// All layers of a decode step of few rows in one kernel: embedding, then per layer norm, QKV, RoPE and KV
// write, attention, O, norm, gate/up, SwiGLU and down; the residual stream comes out. Same bits as the
// kernels of matmul.h and attention.h one after the other.
//
// The launcher neither allocates nor synchronises.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/rope_kv.h"
#include "kernels/half.h"

namespace ridge::kernels::cuda {

// Rows that the kernel takes. With 8 kernels of their own are faster.
inline constexpr int32_t kMaxDecodeLayersRows = 4;

// A layer's weights, as worker/backend/cuda packs them for matmul.h.
struct DecodeLayerWeights {
  const float* attention_norm;   // [hidden]
  const Half* qkv;               // packed [q + 2 kv][hidden], rows as RowPlacement::kRotary says
  const float* qkv_bias;         // in the order of qkv's rows, or null
  const Half* attention_output;  // packed [hidden][q]
  const float* mlp_norm;         // [hidden]
  const Half* gate_up;           // packed [2 mlp][hidden], RowPlacement::kGate and kUp
  const Half* down;              // packed [hidden][mlp]
};

struct DecodeLayersShape {
  int32_t num_layers;
  int32_t hidden;  // at most 1,536; this, mlp and num_heads head_dim: whole chunks of K (order.h)
  int32_t mlp;
  int32_t num_heads;
  int32_t num_kv_heads;  // of at most 8 query heads each
  int32_t head_dim;      // 64 or 128
  bool qk_norm;          // q and k are normed: not possible
};

// Whether the kernel can do a step, and how.
struct DecodeLayersPlan {
  bool possible;
  int32_t max_rows;    // of the kernel that is made for so many
  int32_t ring_slots;  // of weights ahead, 8 KiB each
  int32_t blocks;      // one a multiprocessor
  int32_t shared_bytes;

  std::string ToString() const;
};

struct DecodeLayersDevice {
  int32_t num_sms;
  int32_t shared_bytes_per_block;
  bool has_bulk_copies;  // HasWgmma(): sm_90a's code runs here
};

DecodeLayersPlan PlanDecodeLayers(int32_t rows, const DecodeLayersShape& shape,
                                  const DecodeLayersDevice& device);

// For any number of rows. Cleared before the first launch; launches that share it must not overlap.
int64_t DecodeLayersWorkspaceBytes(const DecodeLayersShape& shape, int32_t num_sms);

struct DecodeLayersArgs {
  DecodeLayersShape shape;
  const DecodeLayerWeights* layers;  // [num_layers], device memory
  const Half* embedding;             // packed [vocab][hidden]
  const int32_t* tokens;             // [rows]; -1 - s: the last token of slot s
  const int32_t* last_tokens;        // [slots]
  float* residual;                   // [rows][hidden]: what the layers leave
  // Without qkv, q and norms; kv is layer 0's.
  RopeKvArgs rope;
  int64_t kv_layer_stride;  // elements from a layer's keys to the next one's
  AttentionWork
      work;  // items of one row and one chunk, at most blocks / num_kv_heads, as AttentionChunk takes them
  float norm_eps;
  void* workspace;  // 128-byte aligned
  unsigned long long* saturations;
};

// Once before the first launch.
[[nodiscard]] cudaError_t PrepareDecodeLayers();

// Of a workspace, before the first launch.
[[nodiscard]] cudaError_t LaunchClearDecodeLayers(void* workspace, const DecodeLayersShape& shape,
                                                  int32_t num_sms, cudaStream_t stream);

// rope.num_rows rows. The blocks wait for each other: the launch is cooperative, and fails where they could
// not all be resident.
[[nodiscard]] cudaError_t LaunchDecodeLayers(const DecodeLayersPlan& plan, const DecodeLayersArgs& args,
                                             cudaStream_t stream);

}  // namespace ridge::kernels::cuda
