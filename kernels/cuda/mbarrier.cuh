// Barriers in shared memory: threads and asynchronous copies arrive, others wait for the end of a phase. By
// their shared addresses.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/spin_guard.cuh"

namespace ridge::kernels::cuda {

// For so many arrivals a phase. By one thread; the others may use it after a __syncthreads.
__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// This thread's arrival comes when its copies (CopyAsync16) so far are there.
__device__ inline void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// The current phase waits for this thread's copies (CopyAsync16) so far, too. Another arrival must still be
// due.
__device__ inline void ExpectCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

#if __CUDA_ARCH__ >= 900

__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Until the phase with this parity has ended. `place`: for SpinGuard.
__device__ inline void AwaitBarrier(uint32_t barrier, uint32_t parity, int place) {
  const SpinGuard guard(place);
  uint32_t done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    guard.Turn();
  } while (done == 0);
}

// Before other threads or bulk copies use barriers that this thread made.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and has the phase wait for so many bytes of bulk copies, too.
__device__ inline void ArriveExpecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

#endif

}  // namespace ridge::kernels::cuda
