#include "worker/backend/cuda/step_transfers.h"

#include <utility>

namespace ridge::worker {
namespace {

constexpr char kUpload[] = "step upload";
constexpr char kResults[] = "step results";

absl::StatusOr<DeviceMemory> Zeroed(int64_t bytes, const char* what, cudaStream_t stream) {
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(bytes, what);
  if (!memory.ok()) return memory;
  const absl::Status status =
      CudaStatus(cudaMemsetAsync(memory->as<void>(), 0, static_cast<size_t>(bytes), stream), what);
  if (!status.ok()) return status;
  return memory;
}

template <typename T>
absl::Status Take(absl::StatusOr<T> from, T* to) {
  if (from.ok()) *to = *std::move(from);
  return from.status();
}

}  // namespace

absl::StatusOr<StepTransfers> StepTransfers::Create(int64_t upload_bytes, int64_t result_bytes,
                                                    cudaStream_t kernels) {
  StepTransfers transfers;
  transfers.kernels_ = kernels;
  absl::Status status = Take(CudaStream::Create(), &transfers.up_);
  status.Update(Take(CudaStream::Create(), &transfers.down_));
  for (Side& side : transfers.sides_) {
    status.Update(Take(Zeroed(upload_bytes, kUpload, kernels), &side.upload));
    status.Update(Take(Zeroed(result_bytes, kResults, kernels), &side.results));
    for (CudaEvent* event : {&side.uploaded, &side.computed, &side.downloaded})
      status.Update(Take(CudaEvent::CreateForStreams(), event));
  }
  status.Update(CudaStatus(cudaStreamSynchronize(kernels), kUpload));
  if (!status.ok()) return status;
  return transfers;
}

absl::Status StepTransfers::Upload(int side, const PinnedMemory& from, int64_t bytes) {
  const Side& at = sides_[side];
  absl::Status status = CudaStatus(cudaStreamWaitEvent(up_.get(), at.downloaded.get(), 0), kUpload);
  status.Update(CudaStatus(cudaMemcpyAsync(at.upload.as<void>(), from.as<void>(), static_cast<size_t>(bytes),
                                           cudaMemcpyHostToDevice, up_.get()),
                           kUpload));
  status.Update(CudaStatus(cudaEventRecord(at.uploaded.get(), up_.get()), kUpload));
  status.Update(CudaStatus(cudaStreamWaitEvent(kernels_, at.uploaded.get(), 0), kUpload));
  return status;
}

absl::Status StepTransfers::Download(int side, const PinnedMemory& to, int64_t bytes, const CudaEvent& done) {
  const Side& at = sides_[side];
  absl::Status status = CudaStatus(cudaEventRecord(at.computed.get(), kernels_), kResults);
  status.Update(CudaStatus(cudaStreamWaitEvent(down_.get(), at.computed.get(), 0), kResults));
  status.Update(CudaStatus(cudaMemcpyAsync(to.as<void>(), at.results.as<void>(), static_cast<size_t>(bytes),
                                           cudaMemcpyDeviceToHost, down_.get()),
                           kResults));
  status.Update(CudaStatus(cudaEventRecord(at.downloaded.get(), down_.get()), kResults));
  status.Update(CudaStatus(cudaEventRecord(done.get(), down_.get()), kResults));
  return status;
}

absl::Status StepTransfers::Synchronize() const {
  absl::Status status = CudaStatus(cudaStreamSynchronize(up_.get()), kUpload);
  status.Update(CudaStatus(cudaStreamSynchronize(down_.get()), kResults));
  return status;
}

}  // namespace ridge::worker
