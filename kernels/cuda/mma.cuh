// The instructions behind the kernels, one function each: matrix multiply-accumulate, fragment and
// asynchronous loads, dependent launches. Fragment layouts are those of the PTX manual; g = lane / 4 and t =
// lane % 4 below.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ridge::kernels::cuda {

inline constexpr int kWarpThreads = 32;

// 16 x 16 fp16, row-major: {row g, k 2t..}, {row g + 8, k 2t..}, {row g, k 2t + 8..}, {row g + 8, k 2t
// + 8..}.
struct FragmentA {
  uint32_t x[4];
};

// 16 x 8 fp16, [k][n]: {k 2t.., column g}, {k 2t + 8.., column g}.
struct FragmentB {
  uint32_t x[2];
};

// 16 x 8 fp32: {row g, columns 2t, 2t + 1}, {row g + 8, columns 2t, 2t + 1}.
struct FragmentC {
  float x[4];
};

// c += a b: the one instruction from which every dot product of the numerics contract is built.
__device__ inline void Mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, %3};"
      : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of fp16; lane i gives the address of row i % 8 of matrix i / 8 (16 bytes, aligned).
// With rows along n and 16 bytes of k each, registers {0, 1} are the FragmentB of k 0..15 and {2, 3} that of
// k 16..31.
__device__ inline void LoadMatrices(uint32_t (&x)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address));
}

// The same with each matrix transposed: rows along k and 16 bytes of n each.
__device__ inline void LoadMatricesTransposed(uint32_t (&x)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address));
}

// 16 bytes that are read once: past L1.
__device__ inline uint4 LoadStreaming(const void* pointer) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(pointer));
  return value;
}

// The same where `valid`; else the value stays as it is. Without a branch.
__device__ inline void LoadStreamingIf(uint4& value, const void* pointer, bool valid) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %5, 0; "
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
      : "l"(pointer), "r"(static_cast<int>(valid)));
}

// 16 bytes from global to shared memory, past L1; zeros where `valid` is false.
__device__ inline void CopyAsync16(uint32_t shared_address, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(shared_address), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Transposes an 8 x 8 matrix of fp16 that the warp holds, two neighbouring columns of row lane / 4 a lane.
__device__ inline uint32_t Transpose8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Clusters (sm_90): blocks that run at once and read each other's shared memory.
#if __CUDA_ARCH__ >= 900

// Blocks along z of this block's cluster: 1 where it is alone.
__device__ inline uint32_t ClusterDepth() {
  uint32_t depth;
  asm("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(depth));
  return depth;
}

// All threads of the cluster's blocks; orders their accesses to shared memory.
__device__ inline void SyncCluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// 16 bytes of the shared memory of the cluster's block `rank`, at this block's address of them.
__device__ inline float4 LoadFromCluster(uint32_t shared_address, uint32_t rank) {
  float4 value;
  asm volatile(
      "{ .reg .u32 remote; mapa.shared::cluster.u32 remote, %4, %5; "
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote]; }"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(shared_address), "r"(rank)
      : "memory");
  return value;
}

#endif

// Dependent launches (sm_90): a kernel that was launched with the attribute may start while the one before it
// runs. Before this call it may read only what no kernel of the step writes (weights).
__device__ inline void WaitForPriorKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start when every block has come here.
__device__ inline void LaunchNextKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace ridge::kernels::cuda
