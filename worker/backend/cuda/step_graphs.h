// Decode steps as captured graphs: by rows, what they sample, the way of their attention and the side of the
// transfers.
//
// Threads: the engine thread. Owns its graphs; they use the memory of the forward pass and of the transfers
// that they were captured with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/cuda/attention_plan.h"
#include "worker/backend/cuda/cuda_forward.h"
#include "worker/backend/cuda/step_transfers.h"

namespace ridge::worker {

class StepGraphs {
 public:
  struct Kind {
    bool greedy;
    bool extended;
    kernels::cuda::AttentionMode attention;
    int side;

    bool operator==(const Kind&) const = default;
  };
  struct Graph {
    int32_t rows;
    Kind kind;
    std::vector<const char*> launches;  // its kernels by name, in order
    cudaGraphExec_t exec;
  };

  StepGraphs() = default;
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs() { Clear(); }

  // All that decode steps of up to `max_rows` rows can need. Calls prepare(rows) before those of so many rows
  // are captured.
  absl::Status Capture(int32_t max_rows, CudaForward* forward, const StepTransfers& transfers,
                       cudaStream_t stream, absl::FunctionRef<absl::Status(int32_t)> prepare);
  // None of them runs.
  void Clear();

  // For a step of so many rows, with padding to the graph's own; null where none fits. Valid until Clear.
  const Graph* Find(int32_t rows, const Kind& kind) const;
  size_t size() const { return graphs_.size(); }

 private:
  absl::Status CaptureOne(int32_t rows, const Kind& kind, CudaForward* forward,
                          const StepTransfers& transfers, cudaStream_t stream);

  std::vector<Graph> graphs_;  // in ascending order of rows
};

}  // namespace ridge::worker
