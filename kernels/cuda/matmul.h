// y[m][n] = sum over k of W[n][k] x[m][k], fp16 in, fp32 sums, in the order of the numerics contract: within
// each DotChunk(K) one chain of mma.m16n8k16 in ascending k from zero; chunk sums are added in ascending
// order; then the bias, then the residual. Every kernel here obeys it, so that which one runs, and how it is
// cut, changes no bit.
//
// The launchers neither allocate nor synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/rope_kv.h"
#include "kernels/half.h"
#include "kernels/order.h"

namespace ridge::kernels::cuda {

enum class MatmulOutput {
  kStore,     // y = W x (+ bias)
  kResidual,  // y += W x (+ bias)
  kSwiGlu,    // gated[m][n / 2] = fp16(SiLU(gate) * up), W packed with RowPlacement::kGate and kUp
  kArgMax,  // best[m] = the largest PackCandidate (sampling_row.cuh) of W x, if larger than what is there; y
            // is not written
  kPartials,  // workspace[chunk][m][n] = a chunk's sums alone: for whoever reads y, to add them in ascending
              // order, and then to what is there
  kRopeKv,    // queries to rope.q, keys and values to the pool, as rope_kv.h; W and bias placed as
              // RowPlacement::kRotary says
};

// One row of attention's output, as AttentionChunk left its chunks: folded, rounded, and then x.
struct UnmergedAttention {
  const float* partials;       // AttentionArgs::partials
  const AttentionItem* items;  // of the row's chunks
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

// Chunks that it may have.
inline constexpr int32_t kMaxUnmerged = 8;

// kArgMax's output is that of the decode, the resident and the batch kernel alone, kPartials' the batch
// kernel's.
struct MatmulArgs {
  const Half* x;      // [m][k]; 16-byte aligned
  const Half* w;      // packed [n][k] (packing.h)
  const float* bias;  // [n] or null
  float* y;           // [m][y_stride]
  Half* gated;        // [m][n / 2]
  uint64_t* best;     // [m]
  int32_t m;
  int32_t n;
  int32_t k;  // a multiple of 16
  int64_t y_stride;
  MatmulOutput output;
  RopeKvArgs rope;                  // kRopeKv's, without its qkv and norms
  unsigned long long* saturations;  // of roundings to fp16
  // Instead of x where not null: RMSNorm of these fp32 rows [m][k], computed by every block for itself
  // (TakesNorm).
  const float* norm_x;
  const float* norm_weight;  // [k]
  float norm_eps;
  // Instead of x where its items are not null, likewise (TakesUnmerged).
  UnmergedAttention unmerged;
  // Of MatmulPlan::split_chunks: partial sums, and counters that are zero before and after every launch.
  float* workspace;
  int32_t* counters;
};

// Which kernel runs and how it is cut: decided on the host, apart from the kernels.
enum class MatmulKernel {
  kDecode,    // a warp a row tile and chunk; up to 32 rows of x
  kResident,  // a warp a row tile, all of x in shared memory; 17 to 32 rows
  kBatch,     // a warp a row tile by sm_90a's instructions, x in shared memory; up to 64 rows
  kTiled,     // blocks of row tiles x tokens through a shared-memory pipeline
  kWgmma,     // the same by sm_90a's own instructions
};

struct MatmulPlan {
  MatmulKernel kernel;
  int32_t token_tile;  // rows of x a block (kDecode: 8, 16, 32; kResident: 32; kBatch: 8, 32, 64;
                       // kTiled: 32, 64, 128; kWgmma: 64, 128)
  int32_t row_tile;    // rows of W a block
  bool split_chunks;   // not kDecode: each block takes one chunk; their sums are added in ascending order
  int32_t blocks;      // kWgmma: one a tile and chunk; without split_chunks those that run at once take all
  // With split_chunks: the blocks of a tile are a cluster of so many and add from each other's shared memory.
  // 0: the last of them to end adds what all left in the workspace. Not kWgmma.
  int32_t cluster = 0;
  // kBatch: no two blocks share a multiprocessor. Else two might, while another has none, where blocks of the
  // kernel before leave it last.
  bool alone = false;
  // kWgmma: a cluster's blocks along rows of W and along tokens, 1 or 2, which divide the tiles there. Each
  // copies half of what both read.
  int32_t cluster_rows = 1;
  int32_t cluster_tokens = 1;

  std::string ToString() const;
};

// Largest m that kDecode takes.
inline constexpr int32_t kMaxDecodeRows = 32;

// Whether the plan's kernel can norm m rows itself: decode, a row or two.
bool TakesNorm(const MatmulPlan& plan, int32_t m, int32_t k);

// Whether the plan's kernel can fold a row of attention's chunks itself.
bool TakesUnmerged(const MatmulPlan& plan, int32_t k, int32_t head_dim);

// Whether the plan's kernel can do kArgMax, and rows up to which some can.
bool TakesArgMax(const MatmulPlan& plan);
inline constexpr int32_t kMaxArgMaxRows = 64;

// Whether the plan's kernel can do kPartials, and how many chunks' sums it leaves.
bool TakesPartials(const MatmulPlan& plan);
int32_t NumChunks(int32_t k);

// The card, as the heuristic sees it.
struct MatmulDevice {
  int32_t num_sms;
  int32_t shared_bytes_per_block;
  bool has_wgmma;               // HasWgmma(); such cards have clusters of blocks, too
  int32_t most_in_cluster = 1;  // MostInWgmmaCluster()
};

MatmulDevice MatmulDeviceOf(const DeviceInfo& info);

// Whether the card, its driver and the code in this binary have what sm_90a's matmuls need.
bool HasWgmma();

// Blocks that a cluster of kWgmma's may have: 4, or fewer where part of the card is another's; 1 without
// HasWgmma().
int32_t MostInWgmmaCluster();

// kPartials as `output`: whoever reads y can add chunks, where the plan leaves any (TakesPartials).
MatmulPlan PlanMatmul(int32_t m, int32_t n, int32_t k, const MatmulDevice& device,
                      MatmulOutput output = MatmulOutput::kStore);

// What a block of the batch kernel needs beside what it always has.
inline constexpr int32_t kMatmulBatchStaticBytes = 1024;
int32_t MatmulBatchSharedBytes(const MatmulPlan& plan, int32_t k);

// Bounds of what a plan with split_chunks needs.
int64_t MatmulWorkspaceBytes(const MatmulPlan& plan, int32_t m, int32_t n, int32_t k);
int64_t MatmulCounterBytes(const MatmulPlan& plan, int32_t m, int32_t n);

// What a block of the decode kernel needs.
int32_t MatmulDecodeSharedBytes(const MatmulPlan& plan, int32_t m, int32_t k);

// What a block of the resident kernel needs, and the most warps that it has.
inline constexpr int32_t kResidentWarps = 12;
int32_t MatmulResidentSharedBytes(int32_t k);

// Once before the first launch: lets kernels use the shared memory that they need.
[[nodiscard]] cudaError_t PrepareMatmulDecode();
[[nodiscard]] cudaError_t PrepareMatmulResident();
[[nodiscard]] cudaError_t PrepareMatmulBatch();
[[nodiscard]] cudaError_t PrepareMatmulTiled();
[[nodiscard]] cudaError_t PrepareMatmulWgmma();
[[nodiscard]] cudaError_t PrepareMatmul();  // all of them

[[nodiscard]] cudaError_t LaunchMatmulDecode(const MatmulPlan& plan, const MatmulArgs& args,
                                             cudaStream_t stream);
[[nodiscard]] cudaError_t LaunchMatmulResident(const MatmulPlan& plan, const MatmulArgs& args,
                                               cudaStream_t stream);
[[nodiscard]] cudaError_t LaunchMatmulBatch(const MatmulPlan& plan, const MatmulArgs& args,
                                            cudaStream_t stream);
[[nodiscard]] cudaError_t LaunchMatmulTiled(const MatmulPlan& plan, const MatmulArgs& args,
                                            cudaStream_t stream);

[[nodiscard]] cudaError_t LaunchMatmulWgmma(const MatmulPlan& plan, const MatmulArgs& args,
                                            cudaStream_t stream);

// By the plan.
[[nodiscard]] cudaError_t LaunchMatmul(const MatmulPlan& plan, const MatmulArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
