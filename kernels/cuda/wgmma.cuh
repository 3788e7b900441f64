// Warpgroup matrix multiply-accumulate, sm_90a only (RIDGE_HAS_WGMMA says whether the code that is being
// compiled has it): the same bits as a chain of mma.m16n8k16, which tests/gpu/numerics_test.cu holds it to.
//
// The 128 threads of a warpgroup call these together. Warp w has rows 16 w .. 16 w + 15 of the 64, with the
// fragments of mma.cuh: c[4 j ..] is the FragmentC of columns 8 j .. 8 j + 7.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RIDGE_HAS_WGMMA 1
#else
#define RIDGE_HAS_WGMMA 0
#endif

namespace ridge::kernels::cuda {

#if RIDGE_HAS_WGMMA

// Describes an operand in shared memory, k-major, unswizzled: core matrices of 8 rows x 16 bytes, 128
// contiguous bytes each; neighbours along k are `depth_stride` bytes apart, neighbours along rows
// `row_stride`.
__device__ inline uint64_t SharedOperand(uint32_t shared_address, uint32_t depth_stride,
                                         uint32_t row_stride) {
  return (shared_address >> 4 & 0x3FFF) | static_cast<uint64_t>(depth_stride >> 4) << 16 |
         static_cast<uint64_t>(row_stride >> 4) << 32;
}

// Rows of 128 bytes, 64 columns, whose 16-byte parts are swizzled by row % 8; groups of 8 rows follow each
// other. The address is that of the first column within the first row, and the group of 8 rows begins at a
// multiple of 1 KiB.
__device__ inline uint64_t SwizzledOperand(uint32_t shared_address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return SharedOperand(shared_address, 16, 1024) | kSwizzle128;
}

// An operand of [k][n] rows: 64 columns in rows of 128 bytes, swizzled likewise, whose groups of 8 rows
// follow each other; the next 64 columns stand `columns_stride` bytes behind. The address is that of the
// first row.
__device__ inline uint64_t SwizzledTransposed(uint32_t shared_address, uint32_t columns_stride) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return SharedOperand(shared_address, columns_stride, 1024) | kSwizzle128;
}

// The operand of the same form `bytes` behind.
__device__ inline uint64_t AdvanceOperand(uint64_t operand, uint32_t bytes) {
  constexpr uint64_t kForm = uint64_t{0xFFFFFFFF} << 32;
  return (operand & kForm) | (static_cast<uint32_t>(operand) + (bytes >> 4));
}

// Before the first of a series, and again after registers that it reads were written.
__device__ inline void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ inline void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// All threads of a warpgroup: how many registers each has from here on, more (kMore) or fewer than before.
template <int kRegisters, bool kMore>
__device__ inline void SetRegisters() {
  if constexpr (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
}

// Makes this thread's ordinary stores to shared memory visible to wgmma; before the barrier.
__device__ inline void FenceSharedForWgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// c[64][columns] += a b, a from registers, and from shared memory: PTX takes neither a width nor the numbers
// of operands as parameters. `SUMS` are the operands of c, `OUTPUTS` what they are bound to; those behind
// them follow.
#define RIDGE_WGMMA(columns, SUMS, OUTPUTS, a_registers, b_behind_registers, a_shared, b_behind_shared) \
  __device__ inline void Wgmma(float(&c)[(columns) / 2], const FragmentA& a, uint64_t b) {              \
    asm volatile(                                                                                       \
        "{ .reg .pred accumulate; setp.ne.b32 accumulate, 1, 0; "                                       \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" SUMS "}, {" a_registers        \
        "}, " b_behind_registers ", accumulate, 1, 1, 0; }"                                             \
        : OUTPUTS                                                                                       \
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b));                                  \
  }                                                                                                     \
  __device__ inline void Wgmma(float(&c)[(columns) / 2], uint64_t a, uint64_t b) {                      \
    asm volatile(                                                                                       \
        "{ .reg .pred accumulate; setp.ne.b32 accumulate, 1, 0; "                                       \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" SUMS "}, " a_shared            \
        ", " b_behind_shared ", accumulate, 1, 1, 0, 0; }"                                              \
        : OUTPUTS                                                                                       \
        : "l"(a), "l"(b));                                                                              \
  }

#define RIDGE_SUMS4 "%0, %1, %2, %3"
#define RIDGE_SUMS16 RIDGE_SUMS4 ", %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define RIDGE_SUMS32 \
  RIDGE_SUMS16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RIDGE_SUMS64                                                                 \
  RIDGE_SUMS32                                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RIDGE_SUMS128                                                                            \
  RIDGE_SUMS64                                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define RIDGE_C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define RIDGE_C16(i) RIDGE_C4(i), RIDGE_C4(i + 4), RIDGE_C4(i + 8), RIDGE_C4(i + 12)
#define RIDGE_C32(i) RIDGE_C16(i), RIDGE_C16(i + 16)
#define RIDGE_C64(i) RIDGE_C32(i), RIDGE_C32(i + 32)
#define RIDGE_C128(i) RIDGE_C64(i), RIDGE_C64(i + 64)

RIDGE_WGMMA(8, RIDGE_SUMS4, RIDGE_C4(0), "%4, %5, %6, %7", "%8", "%4", "%5")
RIDGE_WGMMA(32, RIDGE_SUMS16, RIDGE_C16(0), "%16, %17, %18, %19", "%20", "%16", "%17")
RIDGE_WGMMA(64, RIDGE_SUMS32, RIDGE_C32(0), "%32, %33, %34, %35", "%36", "%32", "%33")
RIDGE_WGMMA(128, RIDGE_SUMS64, RIDGE_C64(0), "%64, %65, %66, %67", "%68", "%64", "%65")
RIDGE_WGMMA(256, RIDGE_SUMS128, RIDGE_C128(0), "%128, %129, %130, %131", "%132", "%128", "%129")

#undef RIDGE_WGMMA

// The products of attention. Scores: c is a b (kFresh), or grows by it, for 64 keys; a and b are K-major.
#define RIDGE_WGMMA_SCORES(OUTPUT, accumulates)                                         \
  asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, " #accumulates         \
               ", 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" RIDGE_SUMS32 \
               "}, %32, %33, accumulate, 1, 1, 0, 0; }"                                 \
               : RIDGE_FRAGMENTS8(OUTPUT, c, 0)                                         \
               : "l"(a), "l"(b))
#define RIDGE_FRAGMENT(OUTPUT, c, i) \
  OUTPUT(c[i].x[0]), OUTPUT(c[i].x[1]), OUTPUT(c[i].x[2]), OUTPUT(c[i].x[3])
#define RIDGE_FRAGMENTS8(OUTPUT, c, i)                                                                      \
  RIDGE_FRAGMENT(OUTPUT, c, i), RIDGE_FRAGMENT(OUTPUT, c, i + 1), RIDGE_FRAGMENT(OUTPUT, c, i + 2),         \
      RIDGE_FRAGMENT(OUTPUT, c, i + 3), RIDGE_FRAGMENT(OUTPUT, c, i + 4), RIDGE_FRAGMENT(OUTPUT, c, i + 5), \
      RIDGE_FRAGMENT(OUTPUT, c, i + 6), RIDGE_FRAGMENT(OUTPUT, c, i + 7)

template <bool kFresh>
__device__ inline void WgmmaScores(FragmentC (&c)[8], uint64_t a, uint64_t b) {
  if constexpr (kFresh) {
    RIDGE_WGMMA_SCORES("=f", 0);
  } else {
    RIDGE_WGMMA_SCORES("+f", 1);
  }
}

// Values: out [64][64 or 128] and 8 more columns of the operand b [16][columns + 8], `sum`, grow by a b.
__device__ inline void WgmmaValues(FragmentC (&out)[8], FragmentC& sum, const FragmentA& a, uint64_t b) {
  asm volatile(
      "{ .reg .pred accumulate; setp.ne.b32 accumulate, 1, 0; "
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {" RIDGE_SUMS32
      ", %32, %33, %34, %35}, {%36, %37, %38, %39}, %40, accumulate, 1, 1, 1; }"
      : RIDGE_FRAGMENTS8("+f", out, 0), "+f"(sum.x[0]), "+f"(sum.x[1]), "+f"(sum.x[2]), "+f"(sum.x[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b));
}

__device__ inline void WgmmaValues(FragmentC (&out)[16], FragmentC& sum, const FragmentA& a, uint64_t b) {
  asm volatile(
      "{ .reg .pred accumulate; setp.ne.b32 accumulate, 1, 0; "
      "wgmma.mma_async.sync.aligned.m64n136k16.f32.f16.f16 {" RIDGE_SUMS64
      ", %64, %65, %66, %67}, {%68, %69, %70, %71}, %72, accumulate, 1, 1, 1; }"
      : RIDGE_FRAGMENTS8("+f", out, 0), RIDGE_FRAGMENTS8("+f", out, 8), "+f"(sum.x[0]), "+f"(sum.x[1]),
        "+f"(sum.x[2]), "+f"(sum.x[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b));
}

// Around a series, of what it writes, and of what the operands of the next one are made from: keeps the
// compiler from moving what makes or uses them into the series, which would run alone then.
template <int kCount>
__device__ inline void HoldFragments(FragmentC (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : RIDGE_FRAGMENT("+f", c, i)::"memory");
}

// What is made of `c` before this is not moved behind it by the assembler, which would have it wait for a
// series first: a loop that is never taken would store it.
__device__ inline void MakeBefore(const FragmentC (&c)[8], int not_negative) {
  asm volatile(
      "{ .reg .pred p; setp.ge.s32 p, %32, 0; STAY: @p bra GO; "
      "st.shared.v4.f32 [%32], {%0, %1, %2, %3}; st.shared.v4.f32 [%32], {%4, %5, %6, %7}; "
      "st.shared.v4.f32 [%32], {%8, %9, %10, %11}; st.shared.v4.f32 [%32], {%12, %13, %14, %15}; "
      "st.shared.v4.f32 [%32], {%16, %17, %18, %19}; st.shared.v4.f32 [%32], {%20, %21, %22, %23}; "
      "st.shared.v4.f32 [%32], {%24, %25, %26, %27}; st.shared.v4.f32 [%32], {%28, %29, %30, %31}; "
      "bra STAY; GO: }" ::RIDGE_FRAGMENTS8("f", c, 0),
      "r"(not_negative)
      : "memory");
}

#undef RIDGE_WGMMA_SCORES
#undef RIDGE_FRAGMENT
#undef RIDGE_FRAGMENTS8
#undef RIDGE_SUMS4
#undef RIDGE_SUMS16
#undef RIDGE_SUMS32
#undef RIDGE_SUMS64
#undef RIDGE_SUMS128
#undef RIDGE_C4
#undef RIDGE_C16
#undef RIDGE_C32
#undef RIDGE_C64
#undef RIDGE_C128

#endif  // RIDGE_HAS_WGMMA

}  // namespace ridge::kernels::cuda
