#include <cstdio>

#include "kernels/cuda/decode_layers.cuh"
#include "kernels/cuda/rms_norm.cuh"

namespace ridge::kernels::cuda {
namespace {

// What the kernel has besides: barriers, sums of a norm.
constexpr int32_t kStaticBytes = 3072;

// The kernel knows no shorter chunk, and no shorter piece.
bool HasEvenChunks(int32_t k) {
  return k % DotChunk(k) == 0 && DotChunk(k) % (kPieceSteps * kTileDepth) == 0;
}

}  // namespace

DecodeLayersPlan PlanDecodeLayers(int32_t rows, const DecodeLayersShape& shape,
                                  const DecodeLayersDevice& device) {
  DecodeLayersPlan plan{};
  plan.blocks = device.num_sms;
  if (!device.has_bulk_copies || rows < 1 || rows > kMaxDecodeLayersRows || shape.qk_norm ||
      shape.hidden > kMaxHidden || shape.num_heads * shape.head_dim > kMaxColumns ||
      DotChunk(shape.mlp) > kMaxColumns || shape.num_heads / shape.num_kv_heads > kMaxAttentionGroup ||
      (shape.head_dim != 64 && shape.head_dim != 128) || DotChunks(shape.mlp) > device.num_sms ||
      !HasEvenChunks(shape.hidden) || !HasEvenChunks(shape.mlp) ||
      !HasEvenChunks(shape.num_heads * shape.head_dim)) {
    return plan;
  }
  for (const int32_t max_rows : {1, 2, 4}) {
    if (rows > max_rows) continue;
    plan.max_rows = max_rows;
    plan.ring_slots = RingSlots(max_rows);
    plan.shared_bytes = LayoutOfDecodeLayers(max_rows, shape, plan.blocks).bytes;
    plan.possible = plan.shared_bytes + kStaticBytes <= device.shared_bytes_per_block;
    if (plan.possible) break;
  }
  return plan;
}

std::string DecodeLayersPlan::ToString() const {
  if (!possible) return "layers by kernels of their own";
  char text[96];
  std::snprintf(text, sizeof(text), "layers in one kernel: blocks=%d ring=%d shared=%d", blocks, ring_slots,
                shared_bytes);
  return text;
}

int64_t DecodeLayersWorkspaceBytes(const DecodeLayersShape& shape, int32_t num_sms) {
  const DecodeLayersWords words = WordsOf(nullptr, shape, num_sms);
  return words.tagged_bytes + words.armed_bytes;
}

}  // namespace ridge::kernels::cuda
