#include <algorithm>
#include <cstdio>

#include "kernels/cuda/mlp.h"
#include "kernels/cuda/mlp_shape.h"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

int32_t CeilDivide(int64_t a, int64_t b) {
  return static_cast<int32_t>((a + b - 1) / b);
}

// Whether K's chunks are what the kernel's loops take.
bool HasWholeSlices(int32_t k) {
  return k % (2 * kMlpSliceColumns) == 0 && NumChunks(k) <= kMaxNormPartials;
}

}  // namespace

MlpPlan PlanMlp(int32_t m, const MlpShape& shape, const MatmulDevice& device) {
  MlpPlan plan{};
  plan.blocks = device.num_sms;
  plan.tokens = m <= 8 ? 8 : m <= 32 ? 32 : 64;
  const int64_t tiles = NumRowTiles(shape.hidden);
  if (MlpProjects(plan.tokens))
    plan.project_units = CeilDivide(tiles, kMlpProjectTiles) * NumChunks(shape.attention);
  plan.down_units = CeilDivide(tiles, kMlpUnitTiles) * NumChunks(shape.mlp);
  const int32_t most_tiles = CeilDivide(shape.mlp / 8, plan.blocks);
  if (!device.has_wgmma || m < kMinMlpRows || m > kMaxMlpRows || m > plan.blocks ||
      !HasWholeSlices(shape.hidden) || !HasWholeSlices(shape.mlp) || !HasWholeSlices(shape.attention) ||
      DotChunk(shape.hidden) != kNormGroup || DotChunk(shape.attention) != kNormGroup ||
      std::max(plan.project_units, plan.down_units) > plan.blocks || most_tiles > kMlpMostTiles) {
    return plan;
  }
  plan.slot_bytes = std::max({most_tiles, kMlpProjectTiles, kMlpUnitTiles * kMlpUnitSlices}) * kMlpTileBytes;
  const int32_t token_bytes = kMlpTokenSlots * plan.tokens * kMlpSliceColumns * 2;
  plan.slots = std::min(kMlpMostSlots,
                        (device.shared_bytes_per_block - kMlpStaticBytes - token_bytes) / plan.slot_bytes);
  plan.in_flight = 4;  // both measured on an H200
  plan.in_flight_ahead = 2;
  plan.shared_bytes = token_bytes + plan.slots * plan.slot_bytes;
  plan.possible = plan.slots >= std::max(plan.in_flight, plan.in_flight_ahead);
  return plan;
}

std::string MlpPlan::ToString() const {
  if (!possible) return "MLP by kernels of its own";
  char text[96];
  std::snprintf(text, sizeof(text), "MLP in one kernel: tokens=%d blocks=%d units=%d+%d ring=%dx%d", tokens,
                blocks, project_units, down_units, slots, slot_bytes);
  return text;
}

}  // namespace ridge::kernels::cuda
