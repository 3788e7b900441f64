#include "worker/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/hash.h"
#include "common/logging.h"
#include "common/start_phase.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/numerics_probe.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/sampling.h"
#include "kernels/order.h"
#include "worker/backend/cuda/open_card.h"

namespace ridge::worker {
namespace {

namespace cuda = kernels::cuda;

// Steps that may be in flight before one has to be allocated.
constexpr int kSteps = 4;
// What a launch that does not wait cannot say.
constexpr char kHowToFind[] = "CUDA_LAUNCH_BLOCKING=1 with --launch=stream names the kernel";

bool LaunchesBlock() {
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  return blocking != nullptr && std::strcmp(blocking, "0") != 0;
}

absl::Status CheckModel(const ModelConfig& config) {
  const auto unsupported = [&](const char* field, int32_t value, const std::string& what) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: a %s of %d is not supported on CUDA, only %s", config.name, field, value, what));
  };
  if (config.hidden_size % 16 != 0) return unsupported("hidden_size", config.hidden_size, "multiples of 16");
  if (config.mlp_size % 16 != 0) return unsupported("mlp_size", config.mlp_size, "multiples of 16");
  if (config.head_dim % 16 != 0 || config.head_dim > 256) {
    return unsupported("head_dim", config.head_dim, "multiples of 16 up to 256");
  }
  const int32_t group = config.num_heads / config.num_kv_heads;
  if (group > 16) return unsupported("group of query heads", group, "up to 16");
  if (config.hidden_size > cuda::kMaxNormSize)
    return unsupported("hidden_size", config.hidden_size, absl::StrCat("up to ", cuda::kMaxNormSize));
  if (config.vocab_size > cuda::kMaxSamplingVocabulary)
    return unsupported("vocab_size", config.vocab_size, absl::StrCat("up to ", cuda::kMaxSamplingVocabulary));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(const WeightSource& source,
                                                                 const CudaOptions& options) {
  if (absl::Status status = CheckModel(source.config()); !status.ok()) return status;
  absl::StatusOr<cuda::DeviceInfo> device = TimedPhase("card opened", OpenCard);
  if (!device.ok()) return device.status();
  std::unique_ptr<CublasLt> cublas;
  if (options.matmul == CudaMatmul::kCublasLt) {
    absl::StatusOr<std::unique_ptr<CublasLt>> opened = CublasLt::Open();
    if (!opened.ok()) return opened.status();
    cublas = *std::move(opened);
  }
  absl::StatusOr<CudaStream> stream = CudaStream::Create();
  if (!stream.ok()) return stream.status();
  const MatrixLayout layout = cublas != nullptr ? MatrixLayout::kRowMajor : MatrixLayout::kPacked;
  absl::StatusOr<CudaWeights> weights =
      TimedPhase("weights on the card", [&] { return CudaWeights::Load(source, stream->get(), layout); });
  if (!weights.ok()) return weights.status();
  std::unique_ptr<CudaBackend> backend(
      new CudaBackend(source, *device, *std::move(stream), *std::move(weights), std::move(cublas), options));
  if (absl::Status status = backend->SetNumericsId(source); !status.ok()) return status;
  return backend;
}

CudaBackend::CudaBackend(const WeightSource& source, cuda::DeviceInfo device, CudaStream stream,
                         CudaWeights weights, std::unique_ptr<CublasLt> cublas, const CudaOptions& options)
    : config_(source.config()),
      device_(std::move(device)),
      options_(options),
      is_blocking_(LaunchesBlock()),
      stream_(std::move(stream)),
      weights_(std::move(weights)),
      cublas_(std::move(cublas)) {
  info_.device = absl::StrCat("cuda: ", Describe(device_));
  if (cublas_ != nullptr) absl::StrAppend(&info_.device, ", matmuls by cuBLASLt ", cublas_->version());
  info_.kv_block_bytes = config_.kv_bytes_per_token() * kBlockTokens;
  info_.memory_bytes = device_.memory_bytes;
  info_.weight_bytes = weights_.bytes();
  info_.vocab_size = config_.vocab_size;
  info_.extended_sampling = true;
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_.get());
  // The last results: their memory is freed next. An error has been told, or nobody asks for it any more.
  transfers_.Synchronize().IgnoreError();
}

// Equal ids promise equal bits: model, types, every constant that fixes the order of a sum, and the card's
// own arithmetic.
absl::Status CudaBackend::SetNumericsId(const WeightSource& source) {
  absl::StatusOr<DeviceMemory> out = DeviceMemory::Allocate(cuda::kProbeOutputs * 4, "numerics probe");
  if (!out.ok()) return out.status();
  std::string probe(cuda::kProbeOutputs * 4, '\0');
  absl::Status status =
      CudaStatus(cuda::LaunchNumericsProbe(out->as<float>(), stream_.get()), "numerics probe");
  status.Update(CudaStatus(cudaStreamSynchronize(stream_.get()), "numerics probe"));
  status.Update(CudaStatus(cudaMemcpy(probe.data(), out->as<void>(), probe.size(), cudaMemcpyDeviceToHost),
                           "numerics probe"));
  if (!status.ok()) return status;
  Sha256 probe_hash;
  probe_hash.Update(probe);
  Sha256 hash;
  hash.Update(absl::StrFormat(
      "cuda 1 fp16 lanes=%d norm=%d chunk=%d tile=%d slice=%d dot=%d,%d,%d probe=%s model=%s",
      kernels::kVirtualLanes, kernels::kNormGroup, kernels::kAttentionChunk, kernels::kAttentionTile,
      kernels::kVocabularySlice, kernels::DotChunk(config_.hidden_size), kernels::DotChunk(config_.q_size()),
      kernels::DotChunk(config_.mlp_size), probe_hash.HexDigest(), source.Fingerprint()));
  if (cublas_ != nullptr) {
    hash.Update(absl::StrCat(" cublaslt=", cublas_->version(), " card=", device_.name));
    info_.numerics_id = kCublasLtPrefix;
  }
  info_.numerics_id += hash.HexDigest().substr(0, 32);
  return absl::OkStatus();
}

absl::StatusOr<int32_t> CudaBackend::DefaultBlocks(const BackendLimits& limits) {
  RIDGE_CHECK(forward_ == nullptr);
  // What graphs take is known once they are there; with the smallest pool that they can be captured on.
  absl::Status status = Prepare(limits);
  if (status.ok()) status = ReserveKv(1, limits);
  size_t free = 0, total = 0;
  if (status.ok()) status = CudaStatus(cudaMemGetInfo(&free, &total), "free memory");
  graphs_.Clear();
  if (!status.ok()) return status;
  const int64_t bytes = static_cast<int64_t>(free) - kMemoryMargin + info_.kv_block_bytes;
  if (bytes < info_.kv_block_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("KV cache: %d MiB of the card's memory are missing for a block of %d KiB and a "
                        "margin of %d MiB (%d of %d MiB are free)",
                        ((info_.kv_block_bytes - bytes) >> 20) + 1, info_.kv_block_bytes >> 10,
                        kMemoryMargin >> 20, free >> 20, total >> 20));
  }
  return static_cast<int32_t>(std::min<int64_t>(bytes / info_.kv_block_bytes, INT32_MAX));
}

absl::Status CudaBackend::Reserve(int32_t num_blocks, const BackendLimits& limits) {
  RIDGE_CHECK(num_blocks >= 1);
  absl::Status status;
  if (forward_ == nullptr) status = Prepare(limits);
  if (status.ok()) status = ReserveKv(num_blocks, limits);
  size_t free = 0, total = 0;
  if (status.ok()) status = CudaStatus(cudaMemGetInfo(&free, &total), "free memory");
  if (!status.ok()) return status;
  LogInfo(
      "memory of the card: weights {} MiB, workspace {} MiB, KV cache {} MiB in {} blocks; {} graphs; "
      "{} of {} MiB are free",
      weights_.bytes() >> 20, forward_->workspace_bytes() >> 20, num_blocks * info_.kv_block_bytes >> 20,
      num_blocks, graphs_.size(), free >> 20, total >> 20);
  return status;
}

absl::Status CudaBackend::Prepare(const BackendLimits& limits) {
  RIDGE_CHECK(forward_ == nullptr && limits.max_slots >= 1 && limits.max_step_rows >= 1);
  max_rows_ = limits.max_step_rows;
  absl::StatusOr<std::unique_ptr<CudaForward>> forward = TimedPhase("workspace", [&] {
    return CudaForward::Create(config_, &weights_, cublas_.get(), device_, limits, options_.split_attention,
                               options_.decode_layers, stream_.get());
  });
  if (!forward.ok()) return forward.status();
  forward_ = *std::move(forward);
  LogInfo("decode steps of few rows: {}", forward_->DecodeLayersPlan());
  return absl::OkStatus();
}

absl::Status CudaBackend::ReserveKv(int32_t num_blocks, const BackendLimits& limits) {
  RIDGE_CHECK(in_flight_.empty() && submitted_ == 0);
  if (absl::Status status = forward_->ReserveKv(num_blocks, stream_.get()); !status.ok()) return status;
  upload_ = std::make_unique<StepUpload>(StepUpload::Limits{config_.vocab_size, config_.context_length,
                                                            max_rows_, limits.max_slots, num_blocks,
                                                            forward_->attention_limits()});
  transfers_ = StepTransfers();
  absl::StatusOr<StepTransfers> transfers =
      StepTransfers::Create(upload_->max_bytes(), ResultBytes(max_rows_), stream_.get());
  if (!transfers.ok()) return transfers.status();
  transfers_ = *std::move(transfers);
  free_.clear();
  for (int i = 0; i < kSteps; ++i) {
    absl::StatusOr<std::unique_ptr<InFlightStep>> step = NewStep();
    if (!step.ok()) return step.status();
    free_.push_back(*std::move(step));
  }
  if (!options_.graphs) return absl::OkStatus();
  return TimedPhase("graphs", [&] { return CaptureGraphs(std::min(limits.max_slots, max_rows_)); });
}

absl::StatusOr<std::unique_ptr<InFlightStep>> CudaBackend::NewStep() const {
  return InFlightStep::Create(upload_->max_bytes(), ResultBytes(max_rows_), max_rows_,
                              forward_->usual_control_bytes());
}

absl::Status CudaBackend::RunPadding(int32_t rows) {
  upload_->Build(StepPlan());
  const PinnedMemory& host = free_.front()->upload;
  const StepLayout layout = upload_->Write(rows, rows, host.as<char>());
  absl::Status status = transfers_.Upload(0, host, layout.bytes);
  if (status.ok())
    status = forward_->Run(layout, transfers_.upload(0), transfers_.results(0), nullptr, stream_.get());
  status.Update(CudaStatus(cudaStreamSynchronize(stream_.get()), "first step"));
  forward_->TakeLaunches(&free_.front()->launches);
  return status;
}

absl::Status CudaBackend::CaptureGraphs(int32_t max_rows) {
  // The library may load code at a size's first launch, which a capture does not allow.
  const auto prepare = [&](int32_t rows) { return cublas_ == nullptr ? absl::OkStatus() : RunPadding(rows); };
  return graphs_.Capture(max_rows, forward_.get(), transfers_, stream_.get(), prepare);
}

const StepGraphs::Graph* CudaBackend::GraphFor(int32_t rows, int side) const {
  const bool greedy = upload_->is_greedy() && rows <= cuda::kMaxArgMaxRows;
  return graphs_.Find(rows, {greedy, upload_->is_extended(), upload_->attention(), side});
}

StepTicket CudaBackend::Submit(const StepPlan& plan) {
  RIDGE_CHECK(forward_ != nullptr);
  upload_->Build(plan);
  absl::StatusOr<std::unique_ptr<InFlightStep>> step;
  if (free_.empty()) {
    step = NewStep();
    RIDGE_CHECK(step.ok());  // more steps in flight than any engine has, and no memory for them
  } else {
    step = std::move(free_.back());
    free_.pop_back();
  }
  (*step)->ticket = submitted_;
  (*step)->side = static_cast<int>(submitted_ % StepTransfers::kSides);
  if (lost_.ok()) lost_ = Enqueue(step->get(), plan);
  (*step)->status = lost_;
  in_flight_.push_back(*std::move(step));
  return submitted_++;
}

absl::Status CudaBackend::Enqueue(InFlightStep* step, const StepPlan& plan) {
  step->num_rows = upload_->num_rows();
  step->num_outputs = upload_->num_outputs();
  step->counts = StepResult();
  CountRows(plan, &step->counts);
  const int32_t rows = step->num_rows + plan.padded_rows;
  RIDGE_CHECK(plan.padded_rows >= 0 && rows <= max_rows_);
  const bool replay = upload_->is_decode() && step->num_rows > 0 && !plan.return_logits;
  const StepGraphs::Graph* graph = replay ? GraphFor(rows, step->side) : nullptr;
  step->graph = graph;
  step->greedy = upload_->is_greedy();
  step->num_top.clear();
  if (upload_->is_extended()) step->num_top = upload_->num_top();
  step->has_logits = plan.return_logits && step->num_outputs > 0;
  const int32_t padded_rows = graph != nullptr ? graph->rows : rows;
  step->padded_outputs = graph != nullptr ? graph->rows : step->num_outputs;
  absl::Status status = step->Prepare(config_.vocab_size);
  if (!status.ok()) return status;

  const StepLayout layout = upload_->Write(padded_rows, step->padded_outputs, step->upload.as<char>());
  status = transfers_.Upload(step->side, step->upload, layout.bytes);
  if (status.ok()) status = EnqueueChanges(step, plan, layout);
  if (status.ok() && graph != nullptr) {
    status = CudaStatus(cudaGraphLaunch(graph->exec, stream_.get()), "decode graph");
    ++step->counts.launches;
  } else if (status.ok() && rows > 0) {
    status = forward_->Run(layout, transfers_.upload(step->side), transfers_.results(step->side),
                           step->host_logits(), stream_.get());
  }
  status.Update(EnqueueResults(step));
  forward_->TakeLaunches(&step->launches);
  step->counts.launches += static_cast<int64_t>(step->launches.size()) + 1;  // the upload
  if (status.ok()) return status;
  return step->Error(absl::StrCat(status.message(), is_blocking_ ? "" : EarlierKernels(*step)));
}

// An error of a kernel is seen by whatever call comes next.
std::string CudaBackend::EarlierKernels(const InFlightStep& step) const {
  const auto first = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [](const auto& earlier) { return !earlier->HasFinished(); });
  return absl::StrFormat(" (or a kernel before it, since step %d; %s)",
                         first == in_flight_.end() ? step.ticket : (*first)->ticket, kHowToFind);
}

// An error of a kernel fails every wait, for steps too that had ended: the first that had not is the one. Or
// the one behind it, whose kernels begin while results are on their way.
absl::Status CudaBackend::Fault(const InFlightStep& collected, cudaError_t error) const {
  const InFlightStep* step = &collected;
  const InFlightStep* next = nullptr;
  for (const auto& later : in_flight_) {
    if (step->HasFinished()) {
      step = later.get();
    } else if (next == nullptr) {
      next = later.get();
    }
  }
  return step->Error(
      absl::StrCat(CudaStatus(error, "a kernel failed").message(), "; one of: ", step->Kernels(),
                   next == nullptr ? "" : absl::StrFormat("; or one of the first of step %d", next->ticket),
                   " (", kHowToFind, ")"));
}

absl::Status CudaBackend::EnqueueChanges(InFlightStep* step, const StepPlan& plan, const StepLayout& layout) {
  absl::Status status = forward_->ApplyChanges(layout, transfers_.upload(step->side), stream_.get());
  if (status.ok()) status = forward_->ApplyControls(plan, &step->controls, stream_.get());
  if (status.ok()) status = forward_->CopyBlocks(plan, stream_.get());
  return status;
}

absl::Status CudaBackend::EnqueueResults(InFlightStep* step) {
  absl::Status status;
  if (step->has_top()) {
    ++step->counts.launches;
    status = CudaStatus(
        cudaMemcpyAsync(step->top.as<void>(), forward_->top(), static_cast<size_t>(step->top_bytes()),
                        cudaMemcpyDeviceToHost, stream_.get()),
        "step results");
  }
  ++step->counts.launches;
  status.Update(
      transfers_.Download(step->side, step->results, ResultBytes(step->padded_outputs), step->done));
  return status;
}

void CudaBackend::WaitFor(StepTicket ticket, int64_t most_ns) {
  RIDGE_CHECK(!in_flight_.empty() && in_flight_.front()->ticket == ticket);
  // A fault is Collect's to report.
  if (in_flight_.front()->status.ok()) in_flight_.front()->WaitFor(std::chrono::nanoseconds(most_ns));
}

absl::StatusOr<StepResult> CudaBackend::Collect(StepTicket ticket) {
  RIDGE_CHECK(!in_flight_.empty() && in_flight_.front()->ticket == ticket);
  std::unique_ptr<InFlightStep> step = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (step->status.ok()) step->status = lost_;
  if (step->status.ok()) {
    if (const cudaError_t error = step->Wait(); error != cudaSuccess)
      step->status = lost_ = Fault(*step, error);
  }
  if (!step->status.ok()) return step->status;

  saturations_of_side_[step->side] = step->saturations();
  saturations_.store(
      std::accumulate(std::begin(saturations_of_side_), std::end(saturations_of_side_), int64_t{0}),
      std::memory_order_relaxed);
  StepResult result = step->TakeResult(config_.vocab_size);
  free_.push_back(std::move(step));
  return result;
}

}  // namespace ridge::worker
