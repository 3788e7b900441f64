// Attention of few decode rows over paged KV: one row of a sequence and one chunk of its keys a block, made
// for the shortest way from the queries to the result. The formula is in attention.h; the bits are
// AttentionSplit's.
//
// Geometry: a block an (item, KV head), 8 warps, all keys and values of the chunk in shared memory at once;
// what earlier steps wrote is on its way there before the kernel waits. Warp w computes the scores of keys 32
// w .. 32 w
// + 31, then columns 16 w .. of O over all keys, in ascending order: three barriers in all. Code that runs
// once is fetched once, and slowly, so it is kept short: the rows 8 .. 15 of a tile are left out where the
// group has none. Shared memory: 1,056 d bytes + 8.6 KiB (141 KiB for d = 128). Alignment: q, out 4 bytes,
// pool 16 bytes. Bytes: K and V of the keys once each KV head. FLOPs: 4 d a key, row and query head, on tiles
// padded to 16 rows. Reference: reference::Attention (1 fp16 ulp).
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpThreads;
constexpr int kRows = kAttentionSplitRows;
constexpr int kChunk = kAttentionChunk;
constexpr int kTile = kAttentionTile;
constexpr int kChunkPages = kChunk / kKvBlockTokens;
constexpr int kTilePages = kTile / kKvBlockTokens;
constexpr int kWarpKeys = kChunk / kWarps;
constexpr int kWarpsPerTile = kTile / kWarpKeys;
constexpr int kWarpColumns = 16;

template <int kDim>
struct Shape {
  static constexpr unsigned kPieces = kDim / kPieceHalves;
  static constexpr int kSteps = kDim / 16;
  static constexpr unsigned kPagePieces = kKvBlockTokens * kPieces;
  static constexpr int kPageBytes = kKvBlockTokens * kDim * 2;
  static constexpr int kChunkBytes = kChunk * kDim * 2;  // of K, and of V
  static constexpr int kQueryBytes = kRows * kDim * 2;
  static constexpr int kSharedBytes = 2 * kChunkBytes + kQueryBytes;
  static_assert(2 * kPagePieces % kThreads == 0);
};

struct BlockShared {
  FragmentA probabilities[kChunk / 16][kWarpThreads];
  float maxima[kWarps][kRows];
  int last_item;
};

// What a block works on.
struct ChunkWork {
  int kv_head;
  int num_keys;   // of the chunk that the row sees; above kChunk where there are more behind it
  int num_pages;  // of the chunk
  int old_pages;  // of them, those that this step does not write
  int num_tiles;  // of the chunk
  int32_t block;  // lane i has the block of page i
};

__device__ inline ChunkWork MakeWork(const AttentionArgs& args, const AttentionItem& item, int kv_head,
                                     int lane) {
  ChunkWork work;
  const int first_page = item.chunk_begin * kChunkPages;
  work.kv_head = kv_head;
  work.num_keys = item.num_keys - item.chunk_begin * kChunk;
  work.num_pages = min(kChunkPages, (work.num_keys + kKvBlockTokens - 1) / kKvBlockTokens);
  work.old_pages = min(work.num_pages, max(item.first_position / kKvBlockTokens - first_page, 0));
  work.num_tiles = (work.num_pages + kTilePages - 1) / kTilePages;
  const int32_t* table = args.block_tables + static_cast<int64_t>(item.table_row) * args.table_stride;
  work.block = lane < work.num_pages ? table[first_page + lane] : 0;
  return work;
}

// Copies a page's K and V, the whole block together; zeros for a page that is only there to fill a tile.
template <int kDim>
__device__ inline void IssuePage(const AttentionArgs& args, const ChunkWork& work, int page,
                                 uint32_t shared) {
  using S = Shape<kDim>;
  const int64_t block = __shfl_sync(0xFFFFFFFFu, work.block, page);
  const Half* from = args.kv.pool + block * args.kv.block_stride +
                     static_cast<int64_t>(work.kv_head) * kKvBlockTokens * kDim;
#pragma unroll
  for (unsigned turn = 0; turn < 2 * S::kPagePieces / kThreads; ++turn) {
    const unsigned i = turn * kThreads + threadIdx.x, piece = i % S::kPagePieces;
    const bool is_value = i >= S::kPagePieces;
    CopyAsync16(shared + (is_value ? S::kChunkBytes : 0) + page * S::kPageBytes +
                    SwizzledOffset<S::kPieces>(piece / S::kPieces, piece % S::kPieces),
                from + (is_value ? args.kv.value_offset : args.kv.key_offset) + piece * kPieceHalves,
                page < work.num_pages);
  }
}

template <int kDim>
__device__ inline void IssueQueries(const AttentionArgs& args, const AttentionItem& item,
                                    const ChunkWork& work, uint32_t shared) {
  using S = Shape<kDim>;
  const unsigned row = threadIdx.x / S::kPieces, piece = threadIdx.x % S::kPieces;
  if (row >= kRows) return;
  CopyAsync16(shared + SwizzledOffset<S::kPieces>(row, piece),
              args.q + RowOffset(args, item, 0, work.kv_head) + (row * kDim + piece * kPieceHalves),
              static_cast<int>(row) < item.num_virtual);
}

// The scores of a warp's keys, masked.
template <int kDim>
__device__ inline void ComputeScores(uint32_t keys, uint32_t queries, int first_key, int num_keys,
                                     unsigned lane, FragmentC (&scores)[kWarpKeys / 8]) {
  using S = Shape<kDim>;
#pragma unroll
  for (int i = 0; i < kWarpKeys / 8; ++i) scores[i] = {};
#pragma unroll 4
  for (int step = 0; step < S::kSteps; ++step) {
    FragmentA q;
    LoadMatrices(q.x, queries + SwizzledOffset<S::kPieces>(lane % 16, 2 * step + lane / 16));
    FragmentB b[kWarpKeys / 16][2];
#pragma unroll
    for (int i = 0; i < kWarpKeys / 16; ++i) LoadKeys<S::kPieces>(b[i], keys, first_key + 16 * i, step, lane);
#pragma unroll
    for (int i = 0; i < kWarpKeys / 8; ++i) Mma(scores[i], q, b[i / 2][i % 2]);
  }
  if (first_key + kWarpKeys <= num_keys) return;
  const int last_keys[2] = {num_keys - 1, num_keys - 1};
#pragma unroll
  for (int i = 0; i < kWarpKeys / 8; ++i) MaskScores(scores[i], first_key + 8 * i, last_keys, lane);
}

// The maxima after a tile.
__device__ inline void TakeTileMaxima(const BlockShared& shared, int tile, bool two_rows, unsigned lane,
                                      float (&max)[2]) {
#pragma unroll
  for (int warp = 0; warp < kWarpsPerTile; ++warp) {
    const float* maxima = shared.maxima[tile * kWarpsPerTile + warp];
    max[0] = fmaxf(max[0], maxima[lane / 4]);
    if (two_rows) max[1] = fmaxf(max[1], maxima[lane / 4 + 8]);
  }
}

// P of this warp's keys to shared memory.
__device__ inline void StoreProbabilities(const FragmentC (&scores)[kWarpKeys / 8], int warp, bool two_rows,
                                          float c, unsigned lane, BlockShared* shared) {
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int tile = 0; tile <= warp / kWarpsPerTile; ++tile) TakeTileMaxima(*shared, tile, two_rows, lane, max);
#pragma unroll
  for (int s = 0; s < kWarpKeys / 16; ++s) {
    FragmentA p = {};
    p.x[0] = Probabilities(scores[2 * s].x[0], scores[2 * s].x[1], max[0], c);
    p.x[2] = Probabilities(scores[2 * s + 1].x[0], scores[2 * s + 1].x[1], max[0], c);
    if (two_rows) {
      p.x[1] = Probabilities(scores[2 * s].x[2], scores[2 * s].x[3], max[1], c);
      p.x[3] = Probabilities(scores[2 * s + 1].x[2], scores[2 * s + 1].x[3], max[1], c);
    }
    shared->probabilities[warp * (kWarpKeys / 16) + s][lane] = p;
  }
}

template <int kDim>
__device__ inline void MultiplyValues(uint32_t values, const BlockShared& shared, int num_tiles, int warp,
                                      bool two_rows, float c, unsigned lane,
                                      ChunkState<kWarpColumns / 8>* state) {
  state->Start();
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    TakeTileMaxima(shared, tile, two_rows, lane, max);
    state->Rescale(max, c);
#pragma unroll
    for (int s = 0; s < kTile / 16; ++s) {
      const FragmentA p = shared.probabilities[tile * (kTile / 16) + s][lane];
      FragmentB b[2];
      LoadValues<Shape<kDim>::kPieces>(b, values, tile * kTile + 16 * s, warp, lane);
      Mma(state->out[0], p, b[0]);
      Mma(state->out[1], p, b[1]);
      Mma(state->sum, p, Ones());
    }
  }
}

// O / l of a warp's columns.
template <int kDim>
__device__ inline void StoreChunk(const AttentionArgs& args, const AttentionItem& item, int kv_head, int warp,
                                  bool two_rows, unsigned lane, const ChunkState<kWarpColumns / 8>& state) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (row == 1 && !two_rows) break;
    const unsigned virtual_row = lane / 4 + 8 * row;
    if (static_cast<int>(virtual_row) >= item.num_virtual) continue;
    Half* to = args.out + RowOffset(args, item, 0, kv_head) + virtual_row * kDim + warp * kWarpColumns +
               lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kWarpColumns / 8; ++i) {
      *reinterpret_cast<__half2*>(to + i * 8) =
          SaturateToHalf2(__fdiv_rn(state.out[i].x[2 * row], state.sum.x[2 * row]),
                          __fdiv_rn(state.out[i].x[2 * row + 1], state.sum.x[2 * row]), args.saturations);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    AttentionChunkKernel(const __grid_constant__ AttentionArgs args, AttentionWork all) {
  using S = Shape<kDim>;
  extern __shared__ __align__(128) uint8_t tiles[];
  __shared__ BlockShared shared;
  const int index = blockIdx.x / args.num_kv_heads;
  if (index >= *all.num_items) return LaunchNextKernel();
  const int warp = threadIdx.x / kWarpThreads;
  const unsigned lane = threadIdx.x % kWarpThreads;
  const AttentionItem& item = all.items[index];
  const ChunkWork work = MakeWork(args, item, blockIdx.x % args.num_kv_heads, static_cast<int>(lane));
  const uint32_t keys = SharedAddress(tiles), values = keys + S::kChunkBytes,
                 queries = values + S::kChunkBytes;
  const bool two_rows = item.num_virtual > 8;
  const float c = ScoreScale(kDim);
#pragma unroll 1
  for (int page = 0; page < work.old_pages; ++page) IssuePage<kDim>(args, work, page, keys);
#pragma unroll 1
  for (int page = work.num_pages; page < work.num_tiles * kTilePages; ++page)
    IssuePage<kDim>(args, work, page, keys);
  WaitForPriorKernel();
  LaunchNextKernel();  // not before: what comes next loads weights, and would be in the way of the matmul
                       // before
#pragma unroll 1
  for (int page = work.old_pages; page < work.num_pages; ++page) IssuePage<kDim>(args, work, page, keys);
  IssueQueries<kDim>(args, item, work, queries);
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();

  FragmentC scores[kWarpKeys / 8];
  ComputeScores<kDim>(keys, queries, warp * kWarpKeys, work.num_keys, lane, scores);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (row == 1 && !two_rows) break;
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kWarpKeys / 8; ++i)
      max = fmaxf(max, fmaxf(scores[i].x[2 * row], scores[i].x[2 * row + 1]));
    max = RowMax(max);
    if (lane % 4 == 0) shared.maxima[warp][lane / 4 + 8 * row] = max;
  }
  __syncthreads();  // the maxima are there
  StoreProbabilities(scores, warp, two_rows, c, lane, &shared);
  __syncthreads();  // P is there
  const bool has_columns = warp * kWarpColumns < kDim;
  ChunkState<kWarpColumns / 8> state;
  if (has_columns) {
    MultiplyValues<kDim>(values, shared, work.num_tiles, warp, two_rows, c, lane, &state);
    if (item.num_items == 1) {
      StoreChunk<kDim>(args, item, work.kv_head, warp, two_rows, lane, state);
    } else {
      StorePartial(
          PartialOf(args, item.chunk_begin == 0 ? item.tile_partial : item.first_partial, work.kv_head), kDim,
          item.num_virtual, warp * kWarpColumns, warp == 0, state.max, state.sum.x[0], state.sum.x[2],
          state.out, lane);
    }
  }
  if (item.num_items > 1 && IsLastItem(args, item, work.kv_head, &shared.last_item))
    MergePartials<kThreads>(args, item, work.kv_head, c);
}

template <int kDim>
cudaError_t Launch(const AttentionArgs& args, const AttentionWork& work, int32_t num_blocks,
                   cudaStream_t stream) {
  constexpr int kBytes = Shape<kDim>::kSharedBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(AttentionChunkKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(AttentionChunkKernel<kDim>, dim3(num_blocks), kThreads, kBytes, stream, args, work);
}

}  // namespace

int32_t AttentionChunkSharedBytes(int32_t head_dim) {
  const int32_t bytes = head_dim == 64    ? Shape<64>::kSharedBytes
                        : head_dim == 128 ? Shape<128>::kSharedBytes
                                          : INT32_MAX / 2;
  return bytes + static_cast<int32_t>(sizeof(BlockShared));
}

cudaError_t LaunchAttentionChunk(const AttentionArgs& args, const AttentionWork& work, int32_t num_blocks,
                                 cudaStream_t stream) {
  if (args.head_dim == 64) return Launch<64>(args, work, num_blocks, stream);
  if (args.head_dim == 128) return Launch<128>(args, work, num_blocks, stream);
  return cudaErrorInvalidValue;
}

}  // namespace ridge::kernels::cuda
