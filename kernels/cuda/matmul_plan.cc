#include <algorithm>
#include <cstdio>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

// Warps of a decode block.
constexpr int32_t kDecodeWarps = 8;

int32_t NumChunks(int32_t k) {
  return static_cast<int32_t>((k + DotChunk(k) - 1) / DotChunk(k));
}

int32_t CeilDivide(int64_t a, int64_t b) {
  return static_cast<int32_t>((a + b - 1) / b);
}

MatmulPlan PlanDecode(int32_t m, int32_t n, int32_t k) {
  MatmulPlan plan{};
  plan.kernel = MatmulKernel::kDecode;
  plan.token_tile = m <= 8 ? 8 : 16;
  const int32_t tiles = std::max(1, kDecodeWarps / NumChunks(k));
  plan.row_tile = tiles * kTileRows;
  plan.blocks = CeilDivide(NumRowTiles(n), tiles);
  return plan;
}

MatmulPlan PlanTiled(int32_t m, int32_t n, int32_t k, const MatmulDevice& device) {
  MatmulPlan plan{};
  plan.kernel = MatmulKernel::kTiled;
  plan.token_tile = m <= 32 ? 32 : m <= 64 ? 64 : 128;
  plan.row_tile = m <= 64 ? 64 : 128;
  plan.blocks = CeilDivide(m, plan.token_tile) * CeilDivide(n, plan.row_tile);
  // Too few blocks leave multiprocessors idle; then the partial sums' way through L2 is the lesser cost.
  plan.split_chunks = NumChunks(k) > 1 && plan.blocks < device.num_sms;
  if (plan.split_chunks) plan.blocks *= NumChunks(k);
  return plan;
}

}  // namespace

MatmulPlan PlanMatmul(int32_t m, int32_t n, int32_t k, const MatmulDevice& device) {
  return m <= kMaxDecodeRows ? PlanDecode(m, n, k) : PlanTiled(m, n, k, device);
}

int64_t MatmulWorkspaceBytes(const MatmulPlan& plan, int32_t m, int32_t n, int32_t k) {
  if (!plan.split_chunks) return 0;
  return int64_t{4} * NumChunks(k) * CeilDivide(m, plan.token_tile) * plan.token_tile * CeilDivide(n, plan.row_tile) *
         plan.row_tile;
}

int64_t MatmulCounterBytes(const MatmulPlan& plan, int32_t m, int32_t n) {
  if (!plan.split_chunks) return 0;
  return int64_t{4} * CeilDivide(m, plan.token_tile) * CeilDivide(n, plan.row_tile);
}

std::string MatmulPlan::ToString() const {
  char text[96];
  std::snprintf(text, sizeof(text), "%s rows=%d tokens=%d blocks=%d%s", kernel == MatmulKernel::kDecode ? "decode" : "tiled",
                row_tile, token_tile, blocks, split_chunks ? " split" : "");
  return text;
}

cudaError_t LaunchMatmul(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  return plan.kernel == MatmulKernel::kDecode ? LaunchMatmulDecode(plan, args, stream)
                                              : LaunchMatmulTiled(plan, args, stream);
}

}  // namespace ridge::kernels::cuda
