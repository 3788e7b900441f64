// Logits under penalties, biases and masks, as kernels/logit_controls.h defines them: a copy of each
// controlled row, so that log-probabilities stay those of the raw one.
//
// Two kernels. Control penalises and masks all ids of a row; Bias adds the few biases, which leaves minus
// infinity alone, so that masks may come before.
//
// Geometry: 256 threads a part of 4,096 ids; 256 threads a row. Bytes: a row read and written, its
// occurrences (4 bytes an id) where there is a penalty, its masks (3 bits an id). Reference:
// reference::Controlled (the same bits).
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sampling_controls.h"
#include "kernels/cuda/sampling_row.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = kSamplingThreads;

__global__ void __launch_bounds__(kThreads) ControlKernel(const __grid_constant__ SamplingArgs args) {
  WaitForPriorKernel();
  LaunchNextKernel();
  const int row = blockIdx.y, part = blockIdx.x;
  const SampleRow target = args.rows[row];
  if (target.slot < 0 || target.controlled == 0) return;
  const SlotSampling slot = args.slots[target.slot];
  const Penalties penalties = {slot.repetition_penalty, slot.presence_penalty, slot.frequency_penalty};
  const auto words = static_cast<int32_t>(MaskWords(args.vocab));
  const uint32_t* allowed = args.controls.masks + static_cast<int64_t>(target.slot) * 3 * words;
  const uint32_t* late = allowed + words;
  const uint32_t* banned = late + words;
  const bool is_early = target.position < slot.late_position;
  const uint32_t* occurrences = args.controls.occurrences + static_cast<int64_t>(target.slot) * args.vocab;
  const float* logits = args.logits + row * args.row_stride;
  float* to = args.controls.logits + target.slot * args.row_stride;
  const int end = min((part + 1) * kSamplingPart, args.vocab);
#pragma unroll 4
  for (int id = part * kSamplingPart + static_cast<int>(threadIdx.x); id < end; id += kThreads) {
    const int word = id / 32;
    const uint32_t masked = ~allowed[word] | banned[word] | (is_early ? late[word] : 0u);
    float logit = logits[id];
    if (slot.penalised != 0) logit = Penalise(logit, occurrences[id], penalties);
    to[id] = (masked >> (id % 32) & 1u) != 0 ? -INFINITY : logit;
  }
}

__global__ void __launch_bounds__(kThreads) BiasKernel(const __grid_constant__ SamplingArgs args) {
  WaitForPriorKernel();
  LaunchNextKernel();
  const SampleRow target = args.rows[blockIdx.x];
  if (target.slot < 0 || target.controlled == 0) return;
  const LogitBias* biases = args.controls.biases + static_cast<int64_t>(target.slot) * kMaxBiases;
  float* to = args.controls.logits + target.slot * args.row_stride;
  const int count = args.slots[target.slot].num_biases;
  for (int i = threadIdx.x; i < count; i += kThreads)
    to[biases[i].id] = __fadd_rn(to[biases[i].id], biases[i].bias);
}

__global__ void __launch_bounds__(kThreads)
    CountTokensKernel(const int32_t* tokens, int count, int prompt_tokens, uint32_t* occurrences) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  if (i < prompt_tokens) {
    atomicOr(&occurrences[tokens[i]], kInPrompt);
  } else {
    atomicAdd(&occurrences[tokens[i]], 1u);
  }
}

}  // namespace

cudaError_t LaunchControls(const SamplingArgs& args, int32_t parts, cudaStream_t stream) {
  const cudaError_t error =
      LaunchDependent(ControlKernel, dim3(parts, args.num_rows), kThreads, 0, stream, args);
  if (error != cudaSuccess) return error;
  return LaunchDependent(BiasKernel, dim3(args.num_rows), kThreads, 0, stream, args);
}

cudaError_t LaunchCountTokens(const int32_t* tokens, int32_t count, int32_t prompt_tokens,
                              uint32_t* occurrences, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  CountTokensKernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(tokens, count, prompt_tokens,
                                                                                occurrences);
  return cudaGetLastError();
}

}  // namespace ridge::kernels::cuda
