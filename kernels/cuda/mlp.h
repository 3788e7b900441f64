// What is behind attention in a layer of a batch of decode rows, by one kernel: the norm of the residual
// stream, with what attention's output matmul left for it to add, gate/up, SwiGLU and down; for few rows that
// matmul, too. The same bits as the kernels of rms_norm.h and matmul.h one after the other, without the time
// between them: weights are under way all the while.
//
// The launcher neither allocates nor synchronises.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rms_norm.h"

namespace ridge::kernels::cuda {

struct MlpShape {
  int32_t attention;  // heads times their size
  int32_t hidden;
  int32_t mlp;
};

// Whether the kernel can do it, and how it is cut.
struct MlpPlan {
  bool possible;
  int32_t tokens;           // rows of x that are multiplied: 8, 32 or 64
  int32_t blocks;           // one a multiprocessor
  int32_t project_units;    // blocks that have a chunk of K of some row tiles of attention's output matmul
  int32_t down_units;       // the same of down
  int32_t slots;            // of the ring of weights
  int32_t slot_bytes;       // of one
  int32_t in_flight;        // slots that are asked for at a time
  int32_t in_flight_ahead;  // the same while a matmul's weights first fill the ring, before its x is there
  int32_t shared_bytes;     // of a block

  std::string ToString() const;
};

inline constexpr int32_t kMinMlpRows = 5, kMaxMlpRows = 64;
// Largest hidden size: chunks of 256 columns.
inline constexpr int32_t kMaxMlpHidden = 2048;

MlpPlan PlanMlp(int32_t m, const MlpShape& shape, const MatmulDevice& device);

// Zero before the first launch; launches that share them must not overlap.
inline constexpr int32_t kMlpCounters = 512;

struct MlpArgs {
  MatmulArgs project;  // kPartials, of attention's output; workspace: norm.partials. Done before where the
                       // plan has no project_units
  // What adds these; x, y: the residual stream; out: gate_up.x.
  RmsNormArgs norm;
  MatmulArgs gate_up;  // kSwiGlu, without a bias; gated: down.x
  MatmulArgs down;     // kPartials; the workspace may be project's
  int32_t* counters;   // [kMlpCounters]
};

// Once before the first launch.
[[nodiscard]] cudaError_t PrepareMlp();

// The blocks wait for each other: all of them must find a multiprocessor, and nothing else on the card may
// wait for what comes after this kernel.
[[nodiscard]] cudaError_t LaunchMlp(const MlpPlan& plan, const MlpArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
