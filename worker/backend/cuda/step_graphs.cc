#include "worker/backend/cuda/step_graphs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/cuda/matmul.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/step_upload.h"

namespace ridge::worker {
namespace {

namespace cuda = kernels::cuda;

// Row counts for which a decode step is captured; a step takes the next one and pads.
std::vector<int32_t> GraphRows(int32_t max_rows) {
  std::vector<int32_t> rows;
  for (int32_t next = 1; next < max_rows; next += next < 2     ? 1
                                                  : next < 4   ? 2
                                                  : next < 8   ? 4
                                                  : next < 64  ? 8
                                                  : next < 256 ? 32
                                                               : 128) {
    rows.push_back(next);
  }
  rows.push_back(max_rows);
  return rows;
}

// What a step of at least `fewest` rows may be when it is padded to `rows`.
std::vector<StepGraphs::Kind> KindsOf(int32_t fewest, int32_t rows, const cuda::AttentionPlanLimits& limits) {
  using cuda::AttentionMode;
  std::vector<AttentionMode> modes = {AttentionMode::kGeneral};
  if (fewest * limits.num_kv_heads <= limits.chunk_blocks) modes.push_back(AttentionMode::kChunks);
  if (rows == 1 && limits.max_unmerged > 0) modes.push_back(AttentionMode::kUnmerged);
  std::vector<StepGraphs::Kind> kinds;
  for (AttentionMode mode : modes) {
    for (int side = 0; side < StepTransfers::kSides; ++side) {
      kinds.push_back({false, false, mode, side});
      kinds.push_back({false, true, mode, side});
      if (rows <= cuda::kMaxArgMaxRows) kinds.push_back({true, false, mode, side});
    }
  }
  return kinds;
}

absl::Status InstantiationStatus(cudaError_t error, int32_t rows) {
  size_t free = 0, total = 0;
  if (error != cudaErrorMemoryAllocation || cudaMemGetInfo(&free, &total) != cudaSuccess)
    return CudaStatus(error, "graph instantiation");
  cudaGetLastError();  // not sticky
  return absl::ResourceExhaustedError(
      absl::StrFormat("graphs: no memory is left for a step of %d rows (%d of %d MiB of the card's memory "
                      "are free); a smaller "
                      "--kv-cache-bytes leaves more",
                      rows, free >> 20, total >> 20));
}

}  // namespace

absl::Status StepGraphs::Capture(int32_t max_rows, CudaForward* forward, const StepTransfers& transfers,
                                 cudaStream_t stream, absl::FunctionRef<absl::Status(int32_t)> prepare) {
  int32_t fewest = 1;
  for (int32_t rows : GraphRows(max_rows)) {
    absl::Status status = prepare(rows);
    for (const Kind& kind : KindsOf(fewest, rows, forward->attention_limits()))
      if (status.ok()) status = CaptureOne(rows, kind, forward, transfers, stream);
    if (!status.ok()) return status;
    fewest = rows + 1;
  }
  return CudaStatus(cudaStreamSynchronize(stream), "graphs");
}

absl::Status StepGraphs::CaptureOne(int32_t rows, const Kind& kind, CudaForward* forward,
                                    const StepTransfers& transfers, cudaStream_t stream) {
  StepLayout layout = StepLayout::Of(rows, rows, kind.greedy, kind.extended);
  layout.attention = kind.attention;
  layout.split_count = 1;  // the kernel reads how many there are
  absl::Status status =
      CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph capture");
  if (!status.ok()) return status;
  status = forward->Run(layout, transfers.upload(kind.side), transfers.results(kind.side), nullptr, stream);
  cudaGraph_t graph = nullptr;
  status.Update(CudaStatus(cudaStreamEndCapture(stream, &graph), "graph capture"));
  Graph captured{rows, kind, {}, nullptr};
  forward->TakeLaunches(&captured.launches);
  if (status.ok()) status = InstantiationStatus(cudaGraphInstantiate(&captured.exec, graph, 0), rows);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  graphs_.push_back(std::move(captured));
  return CudaStatus(cudaGraphUpload(graphs_.back().exec, stream), "graph upload");
}

void StepGraphs::Clear() {
  for (const Graph& graph : graphs_) cudaGraphExecDestroy(graph.exec);
  graphs_.clear();
}

const StepGraphs::Graph* StepGraphs::Find(int32_t rows, const Kind& kind) const {
  const auto graph = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const Graph& each) { return each.rows >= rows && each.kind == kind; });
  return graph == graphs_.end() ? nullptr : &*graph;
}

}  // namespace ridge::worker
