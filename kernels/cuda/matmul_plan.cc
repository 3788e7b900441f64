#include <algorithm>
#include <cstdio>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

// Warps of a decode block, and blocks that share a multiprocessor: more blocks would only wait for these to
// end.
constexpr int32_t kDecodeWarps = 8;
constexpr int32_t kDecodeBlocksPerSm = 2;
// Up to so many rows the batch kernel's chunks are a gain only where the next norm adds them, and it has so
// many to read.
constexpr int32_t kFewRows = 8, kMinPartialRows = 5;

int32_t CeilDivide(int64_t a, int64_t b) {
  return static_cast<int32_t>((a + b - 1) / b);
}

MatmulPlan PlanDecode(int32_t m, int32_t n, int32_t k, const MatmulDevice& device) {
  MatmulPlan plan{};
  plan.kernel = MatmulKernel::kDecode;
  plan.token_tile = m <= 8 ? 8 : m <= 16 ? 16 : 32;
  const int32_t tiles = std::max(1, kDecodeWarps / NumChunks(k));
  plan.row_tile = tiles * kTileRows;
  const int32_t blocks_per_sm = m <= 16 ? kDecodeBlocksPerSm : 1;
  plan.blocks = std::min(CeilDivide(NumRowTiles(n), tiles), blocks_per_sm * device.num_sms);
  return plan;
}

MatmulPlan PlanResident(int32_t n, const MatmulDevice& device) {
  MatmulPlan plan{};
  plan.kernel = MatmulKernel::kResident;
  plan.token_tile = 32;
  // As many rounds as a full block needs, then as few warps as give these.
  const int64_t tiles = NumRowTiles(n);
  const int32_t rounds = CeilDivide(tiles, int64_t{kResidentWarps} * device.num_sms);
  plan.row_tile = CeilDivide(tiles, int64_t{rounds} * device.num_sms) * kTileRows;
  plan.blocks = std::min(CeilDivide(n, plan.row_tile), device.num_sms);
  return plan;
}

// The cut of least time: larger tiles want less of L2, smaller ones and split chunks fill the card.
MatmulPlan PlanWgmma(int32_t m, int32_t n, int32_t k, const MatmulDevice& device) {
  // Measured on an H200, microseconds: a stage of 64 columns and 64 or 128 tokens, what a launch has besides,
  // and split tiles' way through L2, a part of it for each block and 128 tokens.
  constexpr double kStageUs[] = {0.27, 0.45}, kLaunchUs = 3.0, kFoldUs = 7.0, kFoldBlockUs = 0.045;
  MatmulPlan best{};
  double best_us = 0;
  for (const int32_t tokens : {128, 64}) {
    for (const bool split : {false, true}) {
      if (split && NumChunks(k) == 1) continue;
      MatmulPlan plan{};
      plan.kernel = MatmulKernel::kWgmma;
      plan.token_tile = tokens;
      plan.row_tile = 128;
      plan.split_chunks = split;
      plan.blocks = CeilDivide(m, tokens) * CeilDivide(n, plan.row_tile) * (split ? NumChunks(k) : 1);
      const int32_t stages = CeilDivide(split ? DotChunk(k) : k, 64);
      const double us = CeilDivide(plan.blocks, device.num_sms) * stages * kStageUs[tokens / 128] +
                        kLaunchUs + (split ? kFoldUs + kFoldBlockUs * plan.blocks * tokens / 128 : 0);
      if (best.blocks > 0 && us >= best_us) continue;
      best = plan;
      best_us = us;
    }
  }
  if (CeilDivide(n, best.row_tile) % 2 == 0 && device.most_in_cluster >= 2) best.cluster_rows = 2;
  if (CeilDivide(m, best.token_tile) % 2 == 0 && device.most_in_cluster >= 2 * best.cluster_rows)
    best.cluster_tokens = 2;
  return best;
}

MatmulPlan PlanTiled(int32_t m, int32_t n, int32_t k, const MatmulDevice& device) {
  MatmulPlan plan{};
  plan.kernel = MatmulKernel::kTiled;
  plan.token_tile = m <= 32 ? 32 : m <= 64 ? 64 : 128;
  plan.row_tile = m <= 64 ? 64 : 128;
  plan.blocks = CeilDivide(m, plan.token_tile) * CeilDivide(n, plan.row_tile);
  // Where more than half of the multiprocessors would be idle, the partial sums' way through L2 is the lesser
  // cost.
  plan.split_chunks = NumChunks(k) > 1 && 2 * plan.blocks < device.num_sms;
  if (plan.split_chunks) plan.blocks *= NumChunks(k);
  if (plan.split_chunks && device.has_wgmma) plan.cluster = NumChunks(k);
  return plan;
}

// Whether W has enough tiles for blocks that have all of K.
bool HasManyTiles(int32_t n, const MatmulDevice& device) {
  return NumRowTiles(n) >= 4 * int64_t{device.num_sms};
}

MatmulPlan PlanBatch(int32_t m, int32_t n, int32_t k, const MatmulDevice& device, MatmulOutput output) {
  constexpr int32_t kMostTiles = 12, kSplitTiles = 4;
  MatmulPlan plan{};
  plan.kernel = MatmulKernel::kBatch;
  plan.token_tile = m <= kFewRows ? 8 : m <= 32 ? 32 : 64;
  const int64_t tiles = NumRowTiles(n);
  if (DotChunk(k) == 256 && HasManyTiles(n, device)) {
    // As many rounds as full blocks need, then as few tiles as give these.
    const int32_t rounds = CeilDivide(tiles, int64_t{kMostTiles} * device.num_sms);
    plan.row_tile = CeilDivide(tiles, int64_t{rounds} * device.num_sms) * kTileRows;
    plan.blocks = std::min(CeilDivide(n, plan.row_tile), device.num_sms);
    return plan;
  }
  plan.row_tile = kSplitTiles * kTileRows;
  plan.split_chunks = true;
  plan.blocks = CeilDivide(tiles, kSplitTiles) * NumChunks(k);
  if (output == MatmulOutput::kPartials) {
    plan.alone = plan.blocks <= device.num_sms;
    return plan;
  }
  // A cluster needs as many multiprocessors of one part of the card as its blocks fill.
  if (NumChunks(k) > 1 && 4 * MatmulBatchSharedBytes(plan, k) <= device.shared_bytes_per_block)
    plan.cluster = NumChunks(k);
  return plan;
}

}  // namespace

int32_t NumChunks(int32_t k) {
  return static_cast<int32_t>((k + DotChunk(k) - 1) / DotChunk(k));
}

MatmulPlan PlanMatmul(int32_t m, int32_t n, int32_t k, const MatmulDevice& device, MatmulOutput output) {
  if (m >= kMinPartialRows && m <= 64 && device.has_wgmma) {
    const MatmulPlan plan = PlanBatch(m, n, k, device, output);
    const bool gains = m > kFewRows || (output == MatmulOutput::kPartials && plan.split_chunks);
    if (gains && MatmulBatchSharedBytes(plan, k) <= device.shared_bytes_per_block - kMatmulBatchStaticBytes)
      return plan;
  }
  // Above 16 rows a block of the decode kernel has a multiprocessor for itself: good for one round, and where
  // K is short.
  if (m <= 16 || (m <= kMaxDecodeRows && NumRowTiles(n) <= device.num_sms && DotChunk(k) == 256)) {
    const MatmulPlan plan = PlanDecode(m, n, k, device);
    if (MatmulDecodeSharedBytes(plan, m, k) <= device.shared_bytes_per_block) return plan;
  }
  // With fewer than four tiles a multiprocessor there would be too little in flight.
  if (m <= 32 && DotChunk(k) == 256 && HasManyTiles(n, device) &&
      MatmulResidentSharedBytes(k) <= device.shared_bytes_per_block)
    return PlanResident(n, device);
  if (m > 64 && device.has_wgmma) return PlanWgmma(m, n, k, device);
  return PlanTiled(m, n, k, device);
}

bool TakesArgMax(const MatmulPlan& plan) {
  return plan.kernel == MatmulKernel::kDecode || plan.kernel == MatmulKernel::kResident ||
         (plan.kernel == MatmulKernel::kBatch && !plan.split_chunks);
}

bool TakesPartials(const MatmulPlan& plan) {
  return plan.kernel == MatmulKernel::kBatch && plan.split_chunks;
}

int64_t MatmulWorkspaceBytes(const MatmulPlan& plan, int32_t m, int32_t n, int32_t k) {
  if (!plan.split_chunks) return 0;
  return int64_t{4} * NumChunks(k) * CeilDivide(m, plan.token_tile) * plan.token_tile *
         CeilDivide(n, plan.row_tile) * plan.row_tile;
}

int64_t MatmulCounterBytes(const MatmulPlan& plan, int32_t m, int32_t n) {
  if (!plan.split_chunks) return 0;
  return int64_t{4} * CeilDivide(m, plan.token_tile) * CeilDivide(n, plan.row_tile);
}

MatmulDevice MatmulDeviceOf(const DeviceInfo& info) {
  return {info.num_sms, static_cast<int32_t>(info.shared_bytes_per_block), HasWgmma(), MostInWgmmaCluster()};
}

std::string MatmulPlan::ToString() const {
  const char* names[] = {"decode", "resident", "batch", "tiled", "wgmma"};
  char text[96];
  int length = std::snprintf(text, sizeof(text), "%s rows=%d tokens=%d blocks=%d%s",
                             names[static_cast<int>(kernel)], row_tile, token_tile, blocks,
                             cluster > 0    ? " clusters"
                             : alone        ? " split alone"
                             : split_chunks ? " split"
                                            : "");
  if (cluster_rows * cluster_tokens > 1) {
    std::snprintf(text + length, sizeof(text) - static_cast<size_t>(length), " clusters=%dx%d", cluster_rows,
                  cluster_tokens);
  }
  return text;
}

cudaError_t PrepareMatmul() {
  for (cudaError_t (*prepare)() : {PrepareMatmulDecode, PrepareMatmulResident, PrepareMatmulBatch,
                                   PrepareMatmulTiled, PrepareMatmulWgmma}) {
    if (cudaError_t error = prepare(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchMatmul(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream) {
  switch (plan.kernel) {
    case MatmulKernel::kDecode:
      return LaunchMatmulDecode(plan, args, stream);
    case MatmulKernel::kResident:
      return LaunchMatmulResident(plan, args, stream);
    case MatmulKernel::kBatch:
      return LaunchMatmulBatch(plan, args, stream);
    case MatmulKernel::kTiled:
      return LaunchMatmulTiled(plan, args, stream);
    case MatmulKernel::kWgmma:
      return LaunchMatmulWgmma(plan, args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace ridge::kernels::cuda
