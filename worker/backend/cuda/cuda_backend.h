// The model on one CUDA card: fp16 weights and KV, kernels of our own, one after the other.
//
// Submit writes a plan's bytes into pinned memory and enqueues their copy, the kernels (or a captured graph
// of them, for decode-only steps) and the copy of the results, each kind on a stream of its own; it never
// waits for the card. Collect waits for the step's event. Sampled tokens stay on the card: the next step
// finds them there. An error of the card is sticky and comes out of every later Collect.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/cublas_lt.h"
#include "worker/backend/cuda/cuda_forward.h"
#include "worker/backend/cuda/cuda_weights.h"
#include "worker/backend/cuda/in_flight_step.h"
#include "worker/backend/cuda/step_graphs.h"
#include "worker/backend/cuda/step_transfers.h"
#include "worker/backend/cuda/step_upload.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

enum class CudaMatmul {
  kRidge,     // our kernels: the numerics contract
  kCublasLt,  // the library's: no promise beyond tolerance, and a numerics id that says so
};

struct CudaOptions {
  bool graphs = true;           // false: every step on the stream
  bool split_attention = true;  // false: one block walks all keys of a decode row
  CudaMatmul matmul = CudaMatmul::kRidge;
  // One kernel for all layers of a decode step of few rows: the same bits, see docs/performance.md.
  bool decode_layers = true;
};

class CudaBackend : public Backend {
 public:
  // Of the card's memory, what DefaultBlocks leaves: for code that CUDA loads when a kernel runs for the
  // first time, and for its own bookkeeping.
  static constexpr int64_t kMemoryMargin = int64_t{256} << 20;

  // Chooses the card and loads the weights; the source is not needed afterwards. FAILED_PRECONDITION where
  // there is no usable card or no cuBLASLt, UNIMPLEMENTED where the kernels cannot do the model,
  // RESOURCE_EXHAUSTED, or an error of the source.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const WeightSource& source,
                                                             const CudaOptions& options);
  ~CudaBackend() override;

  const BackendInfo& Info() const override { return info_; }
  absl::StatusOr<int32_t> DefaultBlocks(const BackendLimits& limits) override;
  absl::Status Reserve(int32_t num_blocks, const BackendLimits& limits) override;
  StepTicket Submit(const StepPlan& plan) override;
  void WaitFor(StepTicket ticket, int64_t most_ns) override;
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override;

  // Activations that fp16 could not hold and that were set to its largest value, as of the last collected
  // step. From any thread.
  int64_t saturations() const { return saturations_.load(std::memory_order_relaxed); }

 private:
  CudaBackend(const WeightSource& source, kernels::cuda::DeviceInfo device, CudaStream stream,
              CudaWeights weights, std::unique_ptr<CublasLt> cublas, const CudaOptions& options);

  absl::Status SetNumericsId(const WeightSource& source);
  // All working memory but the KV pool, the steps' host memory and the graphs; once.
  absl::Status Prepare(const BackendLimits& limits);
  absl::Status ReserveKv(int32_t num_blocks, const BackendLimits& limits);
  absl::Status CaptureGraphs(int32_t max_rows);
  // Runs a step of padded rows alone, which changes nothing.
  absl::Status RunPadding(int32_t rows);
  absl::StatusOr<std::unique_ptr<InFlightStep>> NewStep() const;
  // For the step in upload_ with padding to so many rows; null where none fits.
  const StepGraphs::Graph* GraphFor(int32_t rows, int side) const;
  // Enqueues what the plan changes in the slots and in the KV memory, before its rows.
  absl::Status EnqueueChanges(InFlightStep* step, const StepPlan& plan, const StepLayout& layout);
  absl::Status EnqueueResults(InFlightStep* step);
  absl::Status Enqueue(InFlightStep* step, const StepPlan& plan);
  std::string EarlierKernels(const InFlightStep& step) const;
  // What is known of an error that waiting for `collected` brought up.
  absl::Status Fault(const InFlightStep& collected, cudaError_t error) const;

  const ModelConfig config_;
  const kernels::cuda::DeviceInfo device_;
  const CudaOptions options_;
  const bool is_blocking_;  // CUDA waits for each kernel: an error comes from its own launch
  BackendInfo info_;
  CudaStream stream_;
  CudaWeights weights_;
  std::unique_ptr<CublasLt> cublas_;  // null: our kernels

  std::unique_ptr<CudaForward> forward_;  // these once Reserve was called
  std::unique_ptr<StepUpload> upload_;
  int32_t max_rows_ = 0;
  StepTransfers transfers_;
  StepGraphs graphs_;

  std::deque<std::unique_ptr<InFlightStep>> in_flight_;
  std::vector<std::unique_ptr<InFlightStep>> free_;
  StepTicket submitted_ = 0;
  absl::Status lost_;  // the first error of the card
  int64_t saturations_of_side_[StepTransfers::kSides] = {};
  std::atomic<int64_t> saturations_{0};
};

}  // namespace ridge::worker
