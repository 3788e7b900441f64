// How blocks of one kernel hand results to each other without a barrier: what is handed over says itself
// that it is there, so that no fence or flag is needed. Two kinds of words, each written once by one thread:
//
// Tagged: 64 bits, a value of 32 bits and a tag. A 64-bit access is atomic, so that a word with the tag has
// the value. Its memory may be used again with another tag once every reader has what it wanted.
//
// Armed: 32 bits, kArmed until they are written; half the bytes, for what many blocks read. Arming is an
// ordinary store of an earlier kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/spin_guard.cuh"

namespace ridge::kernels::cuda {

// What no result is: a NaN that no instruction makes, in fp32 as in either half of a pair of fp16.
inline constexpr uint32_t kArmed = 0xFFFFFFFFu;

#ifdef __CUDA_ARCH__

__device__ inline void PublishWord(uint64_t* to, uint32_t value, uint32_t tag) {
  const uint64_t word = static_cast<uint64_t>(tag) << 32 | value;
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ inline void PublishFloat(uint64_t* to, float value, uint32_t tag) {
  PublishWord(to, __float_as_uint(value), tag);
}

__device__ inline void PublishArmed(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Two words that stand together, at a multiple of 16 bytes.
struct WordPair {
  uint64_t words[2];

  __device__ bool HasTag(uint32_t tag) const {
    return static_cast<uint32_t>(words[0] >> 32) == tag && static_cast<uint32_t>(words[1] >> 32) == tag;
  }
  __device__ uint32_t Value(int i) const { return static_cast<uint32_t>(words[i]); }
  __device__ float Float(int i) const { return __uint_as_float(Value(i)); }
};

__device__ inline void PublishFloats(uint64_t* to, float first, float second, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to),
               "l"(static_cast<uint64_t>(tag) << 32 | __float_as_uint(first)),
               "l"(static_cast<uint64_t>(tag) << 32 | __float_as_uint(second))
               : "memory");
}

// Loads where `missing`. Without a branch.
__device__ inline void LoadWordIf(bool missing, const uint64_t* from, uint64_t* word) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.relaxed.gpu.global.b64 %0, [%1]; }"
               : "+l"(*word)
               : "l"(from), "r"(static_cast<int>(missing))
               : "memory");
}

__device__ inline void LoadPairIf(bool missing, const uint64_t* from, WordPair* pair) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2]; }"
               : "+l"(pair->words[0]), "+l"(pair->words[1])
               : "l"(from), "r"(static_cast<int>(missing))
               : "memory");
}

// Waits until the words at address(i) with wanted(i), i < kCount, have the tag, asking at once for all that
// are missing. Others are 0.
template <int kCount, typename Wanted, typename Address>
__device__ inline void PollWords(uint32_t (&values)[kCount], uint32_t tag, int place, const Wanted& wanted,
                                 const Address& address) {
  const SpinGuard guard(place);
  const auto has_tag = [tag](uint64_t word) { return static_cast<uint32_t>(word >> 32) == tag; };
  uint64_t words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = wanted(i) ? 0 : static_cast<uint64_t>(tag) << 32;
  bool missing;
  do {
#pragma unroll
    for (int i = 0; i < kCount; ++i) LoadWordIf(!has_tag(words[i]), address(i), &words[i]);
    missing = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) missing |= !has_tag(words[i]);
    guard.Turn();
  } while (missing);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<uint32_t>(words[i]);
}

// The same of pairs.
template <int kCount, typename Wanted, typename Address>
__device__ inline void PollPairs(WordPair (&pairs)[kCount], uint32_t tag, int place, const Wanted& wanted,
                                 const Address& address) {
  const SpinGuard guard(place);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint64_t word = wanted(i) ? 0 : static_cast<uint64_t>(tag) << 32;
    pairs[i] = {{word, word}};
  }
  bool missing;
  do {
#pragma unroll
    for (int i = 0; i < kCount; ++i) LoadPairIf(!pairs[i].HasTag(tag), address(i), &pairs[i]);
    missing = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) missing |= !pairs[i].HasTag(tag);
    guard.Turn();
  } while (missing);
}

__device__ inline void LoadArmedIf(bool missing, const uint32_t* from, uint4* words) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(words->x), "+r"(words->y), "+r"(words->z), "+r"(words->w)
      : "l"(from), "r"(static_cast<int>(missing))
      : "memory");
}

// Any of the four.
__device__ inline bool IsArmed(const uint4& words) {
  return max(max(words.x, words.y), max(words.z, words.w)) == kArmed;
}

// Waits until the four armed words at address(i), a multiple of 16 bytes, i < kCount, are written, where
// wanted(i). Others are 0.
template <int kCount, typename Wanted, typename Address>
__device__ inline void PollArmed(uint4 (&words)[kCount], int place, const Wanted& wanted,
                                 const Address& address) {
  const SpinGuard guard(place);
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = wanted(i) ? make_uint4(kArmed, 0, 0, 0) : uint4{};
  bool missing;
  do {
#pragma unroll
    for (int i = 0; i < kCount; ++i) LoadArmedIf(IsArmed(words[i]), address(i), &words[i]);
    missing = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) missing |= IsArmed(words[i]);
    guard.Turn();
  } while (missing);
}

#endif

}  // namespace ridge::kernels::cuda
