// Copies by the copy engine from a described array (tensor_map.h) to the shared memory of one block or of
// several of its cluster, and barriers that blocks of a cluster share (sm_90).
#pragma once

#include <cuda.h>

#include "kernels/cuda/weight_ring.cuh"

namespace ridge::kernels::cuda {

#if __CUDA_ARCH__ >= 900

// This block's number among those of its cluster along x.
__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return rank;
}

__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box at (x, y) to `to` in every block of `blocks` (a bit a rank), whose barrier at `barrier` counts the
// bytes. One thread.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int x, int y, uint32_t barrier,
                               uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
      : "memory");
}

// To this block alone.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int x, int y, int z, uint32_t barrier,
                               uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(blocks)
      : "memory");
}

// Arrives at the barrier that stands at this address in the block `rank` of the cluster. Orders this thread's
// earlier reads of shared memory; a release for the whole cluster would wait for global memory, too (a
// microsecond).
__device__ inline void ArriveInCluster(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{ .reg .u32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

#endif

}  // namespace ridge::kernels::cuda
