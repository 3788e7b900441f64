// A ring of pieces in shared memory that one warp fills and others use: mbarriers and bulk copies (sm_90).
//
// Every piece has a number that counts from 0 in the order in which it is filled; all who use the ring count
// alike. Piece i stands in slot i % kSlots. "Full" ends its phase when the piece has landed, "empty" when
// its user is done.
#pragma once

#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/mma.cuh"

namespace ridge::kernels::cuda {

inline constexpr int kPieceSize = 8192;  // bytes: 16 k steps of a row tile, or some keys of one KV head

// Plain accesses by shared address.
__device__ inline uint4 LoadShared128(uint32_t shared_address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared_address));
  return value;
}

__device__ inline void StoreShared16(uint32_t shared_address, unsigned short value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared_address), "h"(value) : "memory");
}

__device__ inline void StoreShared32(uint32_t shared_address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address), "r"(value) : "memory");
}

__device__ inline uint32_t LoadShared32(uint32_t shared_address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address) : "memory");
  return value;
}

__device__ inline float LoadSharedFloat(uint32_t shared_address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared_address) : "memory");
  return value;
}

__device__ inline float2 LoadSharedFloats(uint32_t shared_address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(shared_address)
               : "memory");
  return value;
}

__device__ inline void StoreSharedFloat(uint32_t shared_address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_address), "f"(value) : "memory");
}

__device__ inline void StoreShared128(uint32_t shared_address, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline void StoreShared64(uint32_t shared_address, uint32_t low, uint32_t high) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(shared_address), "r"(low), "r"(high) : "memory");
}

#if __CUDA_ARCH__ >= 900

__device__ inline uint32_t LoadSharedAcquire(uint32_t shared_address) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(shared_address) : "memory");
  return value;
}

__device__ inline void AddSharedRelease(uint32_t shared_address, uint32_t value) {
  asm volatile("red.release.cta.shared::cta.add.u32 [%0], %1;" ::"r"(shared_address), "r"(value) : "memory");
}

// What is read once, before other things in L2.
__device__ inline uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// `bytes`: a multiple of 16. Signals the barrier's transaction count.
__device__ inline void CopyBulk(uint32_t shared_address, const void* global, int bytes, uint32_t barrier,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// From shared to global memory, both at multiples of 16 bytes; shared memory must stay until AwaitStores.
__device__ inline void StoreBulk(void* global, uint32_t shared_address, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address), "r"(bytes)
               : "memory");
}

// Until this thread's StoreBulk are done.
__device__ inline void AwaitStores() {
  asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}

// Brings them to L2. `bytes`: a multiple of 16.
__device__ inline void PrefetchBulk(const void* global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// Before a piece is given back for a bulk copy, by each thread that has read or written it: such a copy is
// ordered behind ordinary accesses by this alone. An arrival at a barrier can overtake reads that have only
// begun, and behind many other loads they can take longer than the copy.
__device__ inline void FenceForBulkCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Where waiting threads are, for SpinGuard.
enum RingWaits { kWaitFull = 1, kWaitEmpty, kWaitLanded };

template <int kSlots>
struct Ring {
  uint32_t pieces;    // shared address of slot 0
  uint32_t barriers;  // of [kSlots] full, then [kSlots] empty

  __device__ static uint32_t Slot(uint32_t piece) { return piece % kSlots; }
  __device__ static uint32_t Parity(uint32_t piece) { return piece / kSlots & 1; }
  __device__ uint32_t Piece(uint32_t piece) const { return pieces + Slot(piece) * kPieceSize; }
  __device__ uint32_t FullOf(uint32_t slot) const { return barriers + slot * 8; }
  __device__ uint32_t EmptyOf(uint32_t slot) const { return barriers + (kSlots + slot) * 8; }

  __device__ void Init() const {  // one thread
    for (uint32_t i = 0; i < 2 * kSlots; ++i) InitBarrier(barriers + i * 8, 1);
  }
  // A parity alone cannot tell a piece from the one two uses of its slot before: the one between must have
  // been given back. The caller has seen one of the kSlots pieces before this, or all before those were
  // given back.
  __device__ void AwaitFull(uint32_t piece) const {
    AwaitEmpty(piece);
    AwaitBarrier(FullOf(Slot(piece)), Parity(piece), kWaitFull);
  }
  __device__ void AwaitEmpty(uint32_t piece) const {
    AwaitBarrier(EmptyOf(Slot(piece)), Parity(piece) ^ 1, kWaitEmpty);
  }
  __device__ void Release(uint32_t piece) const { Arrive(EmptyOf(Slot(piece))); }
};

#endif

}  // namespace ridge::kernels::cuda
