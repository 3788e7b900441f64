// A ring of pieces in shared memory that one warp fills and others use: mbarriers and bulk copies (sm_90).
//
// Every piece has a number that counts from 0 in the order in which it is filled; all who use the ring count
// alike. Piece i stands in slot i % kRingSlots. "Full" ends its phase when the piece has landed, "empty" when
// its user is done.
#pragma once

#include "kernels/cuda/handover.cuh"
#include "kernels/cuda/mma.cuh"

namespace ridge::kernels::cuda {

inline constexpr int kRingSlots = 20;
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

__device__ inline void StoreShared64(uint32_t shared_address, uint32_t low, uint32_t high) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(shared_address), "r"(low), "r"(high) : "memory");
}

#if __CUDA_ARCH__ >= 900

__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Before other threads or copies use barriers that this thread made.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void Arrive(uint32_t barrier, int count = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Arrives, and has the phase wait for so many bytes of copies, too.
__device__ inline void ArriveExpecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Has the current phase wait for this thread's copies (CopyAsync16) so far. Another arrival must still be
// due.
__device__ inline void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the phase with this parity has ended.
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

// Before a piece that was written by ordinary stores is given back for a bulk copy.
__device__ inline void FenceForBulkCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

struct Ring {
  uint32_t pieces;    // shared address of slot 0
  uint32_t barriers;  // of [kRingSlots] full, then [kRingSlots] empty

  __device__ static uint32_t Slot(uint32_t piece) { return piece % kRingSlots; }
  __device__ static uint32_t Parity(uint32_t piece) { return piece / kRingSlots & 1; }
  __device__ uint32_t Piece(uint32_t piece) const { return pieces + Slot(piece) * kPieceSize; }
  __device__ uint32_t Full(uint32_t piece) const { return barriers + Slot(piece) * 8; }
  __device__ uint32_t Empty(uint32_t piece) const { return barriers + (kRingSlots + Slot(piece)) * 8; }

  __device__ void Init() const {  // one thread
    for (uint32_t i = 0; i < 2 * kRingSlots; ++i) InitBarrier(barriers + i * 8, 1);
  }
  // Until the piece has landed, by the warp that fills: none of the next kRingSlots has been filled.
  __device__ void AwaitLanded(uint32_t piece) const { AwaitBarrier(Full(piece), Parity(piece), 3); }
  // A parity alone cannot tell a piece from the one two uses of its slot before: the one between must have
  // been given back. The caller has seen one of the kRingSlots pieces before this, or all before those were
  // given back.
  __device__ void AwaitFull(uint32_t piece) const {
    AwaitEmpty(piece);
    AwaitBarrier(Full(piece), Parity(piece), 1);
  }
  __device__ void AwaitEmpty(uint32_t piece) const { AwaitBarrier(Empty(piece), Parity(piece) ^ 1, 2); }
  __device__ void Release(uint32_t piece) const { Arrive(Empty(piece)); }
};

#endif

}  // namespace ridge::kernels::cuda
