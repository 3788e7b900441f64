#include <cstdio>

#include "kernels/cuda/decode_layers.cuh"
#include "kernels/cuda/rms_norm.cuh"

namespace ridge::kernels::cuda {
namespace {

// What the kernel has besides: barriers, sums of a norm.
constexpr int32_t kStaticBytes = 2048;

// The kernel knows no shorter chunk, and no shorter piece.
bool HasEvenChunks(int32_t k) {
  return k % DotChunk(k) == 0 && DotChunk(k) % (kPieceSteps * kTileDepth) == 0;
}

}  // namespace

DecodeLayersPlan PlanDecodeLayers(int32_t rows, const DecodeLayersShape& shape,
                                  const DecodeLayersDevice& device) {
  DecodeLayersPlan plan{};
  plan.blocks = device.num_sms;
  const int32_t groups = NormGroups(shape.hidden);
  if (!device.has_bulk_copies || rows < 1 || rows > kMaxDecodeLayersRows || shape.qk_norm ||
      groups > kNormHalves || (shape.head_dim != 64 && shape.head_dim != 128) ||
      DotChunks(shape.mlp) > device.num_sms || !HasEvenChunks(shape.hidden) || !HasEvenChunks(shape.mlp) ||
      !HasEvenChunks(shape.num_heads * shape.head_dim)) {
    return plan;
  }
  const int32_t rounds = CeilDivide(rows, kNormHalves / groups);
  plan.norm_rounds = rounds;
  plan.shared_bytes = LayoutOfDecodeLayers(rows, shape, plan.blocks).bytes;
  plan.possible = rounds <= 2 && plan.shared_bytes + kStaticBytes <= device.shared_bytes_per_block;
  return plan;
}

std::string DecodeLayersPlan::ToString() const {
  if (!possible) return "layers by kernels of their own";
  char text[96];
  std::snprintf(text, sizeof(text), "layers in one kernel: blocks=%d shared=%d norm_rounds=%d", blocks,
                shared_bytes, norm_rounds);
  return text;
}

int64_t DecodeLayersWorkspaceBytes(const DecodeLayersShape& shape, int32_t num_sms) {
  return WordsOf(nullptr, shape, num_sms).bytes;
}

}  // namespace ridge::kernels::cuda
