#include "worker/backend/cuda/cublas_lt.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "worker/backend/cuda/device_memory.h"

namespace ridge::worker {
namespace {

// What the library's own guide names for Hopper; earlier cards need less.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

// Of the version that the header is of; another major version has another interface.
const std::string& LibraryName() {
  static const std::string* const name = new std::string(absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR));
  return *name;
}

}  // namespace

class CublasLt::Library {
 public:
  ~Library() {
    for (const auto& [size, kernel] : kernels_) DestroyKernel(kernel);
    if (preference_ != nullptr) destroy_preference_(preference_);
    if (handle_ != nullptr) destroy_(handle_);
    if (file_ != nullptr) dlclose(file_);
  }

  absl::Status Load() {
    file_ = dlopen(LibraryName().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (file_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("cuBLASLt cannot be loaded: ", dlerror()));
    }
    absl::Status status;
    status.Update(Find("cublasLtCreate", &create_));
    status.Update(Find("cublasLtDestroy", &destroy_));
    status.Update(Find("cublasLtGetVersion", &get_version_));
    status.Update(Find("cublasLtGetStatusString", &status_string_));
    status.Update(Find("cublasLtMatmul", &matmul_));
    status.Update(Find("cublasLtMatmulAlgoGetHeuristic", &get_heuristic_));
    status.Update(Find("cublasLtMatmulDescCreate", &create_operation_));
    status.Update(Find("cublasLtMatmulDescDestroy", &destroy_operation_));
    status.Update(Find("cublasLtMatmulDescSetAttribute", &set_operation_));
    status.Update(Find("cublasLtMatrixLayoutCreate", &create_layout_));
    status.Update(Find("cublasLtMatrixLayoutDestroy", &destroy_layout_));
    status.Update(Find("cublasLtMatmulPreferenceCreate", &create_preference_));
    status.Update(Find("cublasLtMatmulPreferenceDestroy", &destroy_preference_));
    status.Update(Find("cublasLtMatmulPreferenceSetAttribute", &set_preference_));
    return status;
  }

  absl::Status Start() {
    absl::Status status = Check(create_(&handle_), "start");
    if (status.ok()) status = Check(create_preference_(&preference_), "preference");
    if (!status.ok()) return status;
    const size_t workspace_bytes = kWorkspaceBytes;
    status = Check(set_preference_(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                   sizeof(workspace_bytes)),
                   "workspace");
    // No sums by atomic additions: the same step gives the same bits at least.
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    status.Update(Check(set_preference_(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                        sizeof(reductions)),
                        "reductions"));
    absl::StatusOr<DeviceMemory> workspace = DeviceMemory::Allocate(kWorkspaceBytes, "cuBLASLt workspace");
    status.Update(workspace.status());
    if (status.ok()) workspace_ = *std::move(workspace);
    return status;
  }

  std::string Version() const {
    const size_t version = get_version_();
    return absl::StrFormat("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  }

  absl::Status Multiply(const CublasLtMatmul& matmul, cudaStream_t stream) {
    const Size size{matmul.m, matmul.n, matmul.k, matmul.y_stride, matmul.bias != nullptr, matmul.add};
    auto found = kernels_.find(size);
    if (found == kernels_.end()) {
      absl::StatusOr<Kernel> kernel = Choose(matmul);
      if (!kernel.ok()) return kernel.status();
      found = kernels_.emplace(size, *kernel).first;
    }
    const Kernel& kernel = found->second;
    if (matmul.bias != nullptr) {
      if (absl::Status status = SetBias(kernel.operation, matmul.bias); !status.ok()) return status;
    }
    const float one = 1.0f, beta = matmul.add ? 1.0f : 0.0f;
    return Check(matmul_(handle_, kernel.operation, &one, matmul.w, kernel.w, matmul.x, kernel.x, &beta,
                         matmul.y, kernel.y, matmul.y, kernel.y, &kernel.algorithm, workspace_.as<void>(),
                         static_cast<size_t>(kWorkspaceBytes), stream),
                 "launch");
  }

 private:
  using Size = std::tuple<int32_t, int32_t, int32_t, int64_t, bool, bool>;  // m, n, k, y_stride, bias, add
  struct Kernel {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm;
  };

  template <typename Function>
  absl::Status Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(file_, name));
    if (*function != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(LibraryName(), " has no ", name));
  }

  absl::Status Check(cublasStatus_t status, absl::string_view what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("cuBLASLt: ", what, ": ", status_string_(status)));
  }

  void DestroyKernel(const Kernel& kernel) const {
    for (cublasLtMatrixLayout_t layout : {kernel.w, kernel.x, kernel.y}) {
      if (layout != nullptr) destroy_layout_(layout);
    }
    if (kernel.operation != nullptr) destroy_operation_(kernel.operation);
  }

  absl::StatusOr<Kernel> Choose(const CublasLtMatmul& matmul) const {
    Kernel kernel;
    absl::Status status = Describe(matmul, &kernel);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    if (status.ok()) {
      status = Check(get_heuristic_(handle_, kernel.operation, kernel.w, kernel.x, kernel.y, kernel.y,
                                    preference_, 1, &result, &count),
                     "choice of a kernel");
    }
    if (status.ok() && count == 0) status = absl::InternalError("cuBLASLt has no kernel");
    if (!status.ok()) {
      DestroyKernel(kernel);
      return absl::Status(status.code(), absl::StrFormat("%s (m %d, n %d, k %d)", status.message(), matmul.m,
                                                         matmul.n, matmul.k));
    }
    kernel.algorithm = result.algo;
    return kernel;
  }

  // The library's matrices are column-major: ours, read so, are transposed, and y^T = W x^T.
  absl::Status Describe(const CublasLtMatmul& matmul, Kernel* kernel) const {
    absl::Status status =
        Check(create_operation_(&kernel->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul");
    if (!status.ok()) return status;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    status =
        Check(set_operation_(kernel->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)),
              "transposition");
    if (matmul.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      status.Update(
          Check(set_operation_(kernel->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)),
                "bias"));
      status.Update(SetBias(kernel->operation, matmul.bias));
    }
    const auto m = static_cast<uint64_t>(matmul.m), n = static_cast<uint64_t>(matmul.n),
               k = static_cast<uint64_t>(matmul.k);
    status.Update(Check(create_layout_(&kernel->w, CUDA_R_16F, k, n, matmul.k), "weights"));
    status.Update(Check(create_layout_(&kernel->x, CUDA_R_16F, k, m, matmul.k), "input"));
    status.Update(Check(create_layout_(&kernel->y, CUDA_R_32F, n, m, matmul.y_stride), "output"));
    return status;
  }

  absl::Status SetBias(cublasLtMatmulDesc_t operation, const float* bias) const {
    return Check(set_operation_(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)), "bias");
  }

  void* file_ = nullptr;
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtDestroy) destroy_ = nullptr;
  decltype(&cublasLtGetVersion) get_version_ = nullptr;
  decltype(&cublasLtGetStatusString) status_string_ = nullptr;
  decltype(&cublasLtMatmul) matmul_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation_ = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation_ = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout_ = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference_ = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference_ = nullptr;

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  DeviceMemory workspace_;
  absl::flat_hash_map<Size, Kernel> kernels_;
};

absl::Status CublasLt::Find() {
  return Library().Load();
}

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Open() {
  std::unique_ptr<CublasLt> cublas(new CublasLt());
  absl::Status status = cublas->library_->Load();
  if (status.ok()) status = cublas->library_->Start();
  if (!status.ok()) return status;
  cublas->version_ = cublas->library_->Version();
  return cublas;
}

absl::Status CublasLt::Multiply(const CublasLtMatmul& matmul, cudaStream_t stream) {
  return library_->Multiply(matmul, stream);
}

}  // namespace ridge::worker

#else

namespace ridge::worker {

class CublasLt::Library {};

absl::Status CublasLt::Find() {
  return absl::FailedPreconditionError(
      "this build knows no cuBLASLt: cublasLt.h was not found when it was made");
}

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Open() {
  return Find();
}

absl::Status CublasLt::Multiply(const CublasLtMatmul&, cudaStream_t) {
  return absl::InternalError("no cuBLASLt");
}

}  // namespace ridge::worker

#endif

namespace ridge::worker {

CublasLt::CublasLt() : library_(std::make_unique<Library>()) {}
CublasLt::~CublasLt() = default;

}  // namespace ridge::worker
