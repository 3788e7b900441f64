// How blocks of one kernel hand results to each other without a barrier: words of 64 bits that hold a value
// of 32 bits and a tag. A word is written once by one thread and read by any that expects its tag; a 64-bit
// access is atomic, so that a word with the tag has the value, and no fence or flag is needed. Its memory may
// be used again with another tag once every reader has what it wanted.
#pragma once

#include <cstdint>
#ifdef RIDGE_BOUNDED_SPINS
#include <cstdio>
#endif

namespace ridge::kernels::cuda {

#ifdef __CUDA_ARCH__

// Ends a kernel that waits for what will never come, in builds that look for such faults
// (RIDGE_BOUNDED_SPINS).
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

__device__ inline void PublishWord(uint64_t* to, uint32_t value, uint32_t tag) {
  const uint64_t word = static_cast<uint64_t>(tag) << 32 | value;
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ inline void PublishFloat(uint64_t* to, float value, uint32_t tag) {
  PublishWord(to, __float_as_uint(value), tag);
}

// The word there, or one of value 0 with the tag where it is not `wanted`. Without a branch.
__device__ inline uint64_t LoadWordIf(bool wanted, const uint64_t* from, uint32_t tag) {
  uint64_t word = static_cast<uint64_t>(tag) << 32;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.relaxed.gpu.global.b64 %0, [%1]; }"
               : "+l"(word)
               : "l"(from), "r"(static_cast<int>(wanted))
               : "memory");
  return word;
}

// Waits until the words at address(i) with wanted(i), i < kCount, have the tag, asking for all at once.
// Others are 0.
template <int kCount, typename Wanted, typename Address>
__device__ inline void PollWords(uint32_t (&values)[kCount], uint32_t tag, int place, const Wanted& wanted,
                                 const Address& address) {
  const SpinGuard guard(place);
  bool missing;
  do {
    uint64_t words[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) words[i] = LoadWordIf(wanted(i), address(i), tag);
    missing = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      missing |= static_cast<uint32_t>(words[i] >> 32) != tag;
      values[i] = static_cast<uint32_t>(words[i]);
    }
    guard.Turn();
  } while (missing);
}

#endif

}  // namespace ridge::kernels::cuda
