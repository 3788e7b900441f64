// Barriers in shared memory that wait for a thread's asynchronous copies (sm_80).
#pragma once

#include "kernels/cuda/mma.cuh"

namespace ridge::kernels::cuda {

// For so many arrivals a phase. By one thread; the others may use it after a __syncthreads.
__device__ inline void InitBarrier(uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}

// Arrives when this thread's copies (CopyAsync16) so far are there.
__device__ inline void ArriveWithCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}

// Until the first phase has ended.
__device__ inline void AwaitFirstPhase(uint64_t* barrier) {
  uint32_t done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(SharedAddress(barrier))
        : "memory");
  } while (done == 0);
}

}  // namespace ridge::kernels::cuda
