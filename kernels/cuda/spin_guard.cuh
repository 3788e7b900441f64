// Ends a kernel that waits for what will never come, in builds that look for such faults
// (RIDGE_BOUNDED_SPINS).
#pragma once

#ifdef RIDGE_BOUNDED_SPINS
#include <cstdio>
#endif

namespace ridge::kernels::cuda {

#ifdef __CUDA_ARCH__

// `place`: where the thread waits, for the message.
class SpinGuard {
 public:
#ifdef RIDGE_BOUNDED_SPINS
  __device__ explicit SpinGuard(int place) : place_(place), begin_(clock64()) {}
  __device__ void Turn() const {
    if (clock64() - begin_ < 200'000'000) return;
    printf("block %d thread %d waits in vain at %d\n", blockIdx.x, threadIdx.x, place_);
    __trap();
  }

 private:
  int place_;
  long long begin_;
#else
  __device__ explicit SpinGuard(int) {}
  __device__ void Turn() const {}
#endif
};

#endif

}  // namespace ridge::kernels::cuda
