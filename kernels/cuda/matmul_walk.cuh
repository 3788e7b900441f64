// How the blocks of matmul_wgmma.cu share tiles of the result, and go through them.
#pragma once

#include "kernels/cuda/matmul_stage.cuh"
#include "kernels/cuda/tensor_copy.cuh"

namespace ridge::kernels::cuda {

struct Tiling {
  int row_blocks, token_blocks;
  int cluster_rows, cluster_tokens;  // blocks of a cluster
  bool rows_first;                   // neighbouring clusters have the same tokens
};

#if __CUDA_ARCH__ >= 900

// A block's way through its tiles and their stages. Stages of a tile come in pairs: what lies beyond K is
// zero.
struct Walk {
  int row_in_cluster, token_in_cluster;
  int cluster, num_clusters;
  int first_stage, num_stages;
  int num_tiles;  // of clusters

  __device__ Walk(const MatmulArgs& args, const Tiling& tiling, bool split) {
    const int blocks = tiling.cluster_rows * tiling.cluster_tokens, rank = static_cast<int>(ClusterRank());
    row_in_cluster = rank % tiling.cluster_rows;
    token_in_cluster = rank / tiling.cluster_rows;
    cluster = static_cast<int>(blockIdx.x) / blocks;
    num_clusters = static_cast<int>(gridDim.x) / blocks;
    num_tiles = tiling.row_blocks * tiling.token_blocks / blocks;
    const int stages = (args.k + kStageDepth - 1) / kStageDepth;
    const int chunk_stages = static_cast<int>(DotChunk(args.k)) / kStageDepth;
    first_stage = split ? static_cast<int>(blockIdx.z) * chunk_stages : 0;
    num_stages = ((split ? min(chunk_stages, stages - first_stage) : stages) + 1) / 2 * 2;
  }

  // The first row tile, and the first token, of this block in a tile of clusters; of blocks with so many.
  __device__ int RowTile(const Tiling& tiling, int tile, int row_tiles) const {
    const int groups = tiling.token_blocks / tiling.cluster_tokens;
    const int group = tiling.rows_first ? tile % (tiling.row_blocks / tiling.cluster_rows) : tile / groups;
    return (group * tiling.cluster_rows + row_in_cluster) * row_tiles;
  }
  __device__ int Token(const Tiling& tiling, int tile, int tokens) const {
    const int groups = tiling.token_blocks / tiling.cluster_tokens;
    const int group = tiling.rows_first ? tile / (tiling.row_blocks / tiling.cluster_rows) : tile % groups;
    return (group * tiling.cluster_tokens + token_in_cluster) * tokens;
  }
};

#endif

}  // namespace ridge::kernels::cuda
