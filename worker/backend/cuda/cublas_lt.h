// Matmuls by NVIDIA's cuBLASLt, an opt-in beside our own kernels (--matmul=cublaslt). The library picks
// another order of sums for another number of rows: bits depend on who shares a step, and the numerics id
// says so.
//
// Nothing is linked: the library is loaded when somebody asks for it, so that builds and machines without it
// serve as ever. Threads: the engine thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/half.h"

namespace ridge::worker {

// y[m][n] = W x (+ bias) (+ y), fp16 in, fp32 sums. Everything is row-major device memory, aligned to 256
// bytes.
struct CublasLtMatmul {
  const kernels::Half* x;  // [m][k]
  const kernels::Half* w;  // [n][k]
  const float* bias;       // [n] or null
  float* y;                // [m][y_stride]
  int32_t m;
  int32_t n;
  int32_t k;
  int64_t y_stride;
  bool add;  // to what y holds
};

class CublasLt {
 public:
  // FAILED_PRECONDITION where the library cannot be loaded, or this build knows nothing of it. Needs no card.
  static absl::Status Find();
  // Ready for the current card, with a workspace there.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Open();
  ~CublasLt();

  // "13.1.0".
  const std::string& version() const { return version_; }

  // Enqueues it. The first of a size asks the library for its kernel and must not be captured: the library
  // may load code then.
  absl::Status Multiply(const CublasLtMatmul& matmul, cudaStream_t stream);

 private:
  class Library;

  CublasLt();

  std::unique_ptr<Library> library_;
  std::string version_;
};

}  // namespace ridge::worker
