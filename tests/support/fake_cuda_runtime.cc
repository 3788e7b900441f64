#include "tests/support/fake_cuda_runtime.h"

#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace ridge::fake_cuda {
namespace {

// Registered before main() by the code that nvcc makes: host functions that stand for kernels, and their
// names.
std::unordered_map<const void*, std::string>& KernelNames() {
  static auto* const names = new std::unordered_map<const void*, std::string>();
  return *names;
}

struct State {
  Card card;
  int64_t used_bytes = 0;
  int64_t allocations = 0;
  uintptr_t next_pointer = uintptr_t{1} << 44;
  std::unordered_map<uintptr_t, int64_t> sizes;  // of device memory
  std::unordered_map<const void*, int> most_dynamic;
  std::map<std::string, int> launched;
  int failing_launch = -1;
  cudaError_t failure = cudaSuccess;
  Seen seen = Seen::kAtLaunch;
  cudaError_t pending = cudaSuccess;  // seen by whoever waits
  cudaError_t sticky = cudaSuccess;   // by everybody
  bool capturing = false;
  std::vector<StreamCall> calls;
};

State& Fake() {
  static auto* const state = new State();
  return *state;
}

template <typename Handle>
Handle NewHandle() {
  return reinterpret_cast<Handle>(std::malloc(1));
}

void Note(Enqueued what, cudaStream_t stream, cudaEvent_t event = nullptr) {
  if (!Fake().capturing) Fake().calls.push_back({what, stream, event});
}

cudaError_t Launch(cudaStream_t stream) {
  State& fake = Fake();
  Note(Enqueued::kLaunch, stream);
  if (fake.sticky != cudaSuccess) return fake.sticky;
  if (fake.capturing || fake.failing_launch < 0 || fake.failing_launch-- > 0) return cudaSuccess;
  (fake.seen == Seen::kByWaiting ? fake.pending : fake.sticky) = fake.failure;
  return fake.seen == Seen::kAtLaunch ? fake.failure : cudaSuccess;
}

cudaError_t Wait() {
  State& fake = Fake();
  if (fake.pending != cudaSuccess) fake.sticky = fake.pending;
  return fake.sticky;
}

// Nothing does any more once a kernel has failed.
bool Runs() {
  return Fake().pending == cudaSuccess && Fake().sticky == cudaSuccess;
}

cudaError_t LaunchKernel(const void* function, size_t dynamic_bytes, cudaStream_t stream) {
  State& fake = Fake();
  const auto allowed = fake.most_dynamic.find(function);
  const int most = allowed == fake.most_dynamic.end() ? 48 << 10 : allowed->second;
  if (static_cast<int>(dynamic_bytes) > most) return cudaErrorInvalidValue;
  int& launched = fake.launched[KernelNames().at(function)];
  launched = std::max(launched, static_cast<int>(dynamic_bytes));
  return Launch(stream);
}

}  // namespace

void Insert(const Card& card) {
  Fake() = State();
  Fake().card = card;
}

int64_t UsedBytes() {
  return Fake().used_bytes;
}

int64_t NumAllocations() {
  return Fake().allocations;
}

const std::map<std::string, int>& LaunchedSharedBytes() {
  return Fake().launched;
}

const std::vector<StreamCall>& StreamCalls() {
  return Fake().calls;
}

void FailLaunch(int launch, cudaError_t error, Seen seen) {
  Fake().failing_launch = launch;
  Fake().failure = error;
  Fake().seen = seen;
}

}  // namespace ridge::fake_cuda

using ridge::fake_cuda::Enqueued;
using ridge::fake_cuda::Fake;
using ridge::fake_cuda::KernelNames;
using ridge::fake_cuda::Launch;
using ridge::fake_cuda::LaunchKernel;
using ridge::fake_cuda::NewHandle;
using ridge::fake_cuda::Note;
using ridge::fake_cuda::Runs;
using ridge::fake_cuda::State;
using ridge::fake_cuda::Wait;

namespace {

// Of the launch whose configuration was pushed last.
thread_local size_t pushed_bytes = 0;

bool IsCooperative(const cudaLaunchConfig_t& config) {
  return std::any_of(config.attrs, config.attrs + config.numAttrs, [](const cudaLaunchAttribute& attribute) {
    return attribute.id == cudaLaunchAttributeCooperative && attribute.val.cooperative != 0;
  });
}

CUresult EncodeTensorMap(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                         const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                         CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  KernelNames()[host_function] = name;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t shared_bytes, CUstream_st*) {
  pushed_bytes = shared_bytes;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t* shared_bytes, void*) {
  *shared_bytes = pushed_bytes;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t shared_bytes,
                               cudaStream_t stream) {
  return LaunchKernel(kernel, shared_bytes, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t shared_bytes,
                             cudaStream_t stream) {
  return LaunchKernel(function, shared_bytes, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
  if (IsCooperative(*config) && static_cast<int>(config->gridDim.x) > Fake().card.cooperative_blocks)
    return cudaErrorCooperativeLaunchTooLarge;
  return LaunchKernel(function, config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaGetLastError() {
  return Fake().sticky;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorCooperativeLaunchTooLarge:
      return "cudaErrorCooperativeLaunchTooLarge";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "an error";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  const State& fake = Fake();
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "Fake card");
  properties->major = fake.card.major;
  properties->minor = fake.card.minor;
  properties->multiProcessorCount = fake.card.num_sms;
  properties->totalGlobalMem = static_cast<size_t>(fake.card.memory_bytes);
  properties->sharedMemPerBlockOptin = static_cast<size_t>(fake.card.shared_bytes_per_block);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? Fake().card.shared_bytes_per_block
           : attribute == cudaDevAttrClockRate                  ? 1'695'000
           : attribute == cudaDevAttrMemoryClockRate            ? 6'251'000
                                                                : 0;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = Fake().card.major * 10 + Fake().card.minor;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > Fake().card.shared_bytes_per_block) return cudaErrorInvalidValue;
  Fake().most_dynamic[function] = value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                   unsigned) {
  *blocks = 1;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 1;
  return cudaSuccess;
}
// There is no driver, except for this.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool has = Fake().card.maps_tensors;
  *function = has ? reinterpret_cast<void*>(&EncodeTensorMap) : nullptr;
  *found = has ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t size) {
  State& fake = Fake();
  if (fake.used_bytes + static_cast<int64_t>(size) > fake.card.memory_bytes) return cudaErrorMemoryAllocation;
  *pointer = reinterpret_cast<void*>(fake.next_pointer);
  fake.sizes[fake.next_pointer] = static_cast<int64_t>(size);
  fake.next_pointer += (size + 511) / 256 * 256;
  fake.used_bytes += static_cast<int64_t>(size);
  ++fake.allocations;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const auto size = Fake().sizes.find(reinterpret_cast<uintptr_t>(pointer));
  if (size == Fake().sizes.end()) return cudaErrorInvalidValue;
  Fake().used_bytes -= size->second;
  Fake().sizes.erase(size);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t size) {
  *pointer = std::calloc(size, 1);
  ++Fake().allocations;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = static_cast<size_t>(Fake().card.memory_bytes - Fake().used_bytes);
  *total = static_cast<size_t>(Fake().card.memory_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void*, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyDeviceToHost) Note(Enqueued::kCopyToHost, stream);
  if (kind == cudaMemcpyHostToDevice) Note(Enqueued::kCopyToDevice, stream);
  if (kind == cudaMemcpyDeviceToHost && size > 0 && Runs()) std::memset(to, 0, size);
  return Fake().sticky;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t pitch, const void*, size_t, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t) {
  for (size_t row = 0; kind == cudaMemcpyDeviceToHost && Runs() && row < height; ++row)
    std::memset(static_cast<char*>(to) + row * pitch, 0, width);
  return Fake().sticky;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  return Fake().sticky;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = NewHandle<cudaStream_t>();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::free(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return Wait();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = NewHandle<cudaEvent_t>();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::free(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Note(Enqueued::kEventRecord, stream, event);
  return Fake().sticky;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Note(Enqueued::kEventWait, stream, event);
  return Fake().sticky;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return Wait();
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return Wait();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  Fake().capturing = true;
  return Fake().sticky;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  Fake().capturing = false;
  *graph = NewHandle<cudaGraph_t>();
  return Fake().sticky;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t, unsigned long long) {
  if (Fake().used_bytes + Fake().card.graph_bytes > Fake().card.memory_bytes)
    return cudaErrorMemoryAllocation;
  *exec = NewHandle<cudaGraphExec_t>();
  Fake().used_bytes += Fake().card.graph_bytes;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  std::free(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  std::free(exec);
  Fake().used_bytes -= Fake().card.graph_bytes;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return Fake().sticky;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) {
  return Launch(stream);
}

}  // extern "C"
