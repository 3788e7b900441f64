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
#include "kernels/cuda/attention_chunk.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/launch.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kThreads = kChunkWarps * kWarpThreads;
constexpr int kRows = kAttentionSplitRows;
constexpr int kChunk = kAttentionChunk;
constexpr int kTile = kAttentionTile;
constexpr int kTilePages = kTile / kKvBlockTokens;

template <int kDim>
struct Shape {
  static constexpr unsigned kPieces = kDim / kPieceHalves;
  static constexpr unsigned kPagePieces = kKvBlockTokens * kPieces;
  static constexpr int kPageBytes = kKvBlockTokens * kDim * 2;
  static constexpr int kChunkBytes = kChunk * kDim * 2;  // of K, and of V
  static constexpr int kQueryBytes = kRows * kDim * 2;
  static constexpr int kSharedBytes = 2 * kChunkBytes + kQueryBytes;
  static_assert(2 * kPagePieces % kThreads == 0);
};

// What the warps tell each other.
struct alignas(16) ChunkShared {
  FragmentA probabilities[kAttentionChunk / 16][kWarpThreads];
  float maxima[kChunkWarps][kAttentionSplitRows];
};

struct BlockShared {
  ChunkShared chunk;
  bool is_last;  // whether the item was its tile's last to be done
};

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

// The scores of a warp's keys, of which the first is the chunk's `first_key` and stands at `keys`; masked.
template <int kDim>
__device__ void ComputeScores(uint32_t keys, uint32_t queries, int first_key, int num_keys, unsigned lane,
                              FragmentC (&scores)[kChunkWarpKeys / 8]) {
  constexpr unsigned kPieces = kDim / kPieceHalves;
#pragma unroll
  for (int i = 0; i < kChunkWarpKeys / 8; ++i) scores[i] = {};
#pragma unroll 4
  for (int step = 0; step < kDim / 16; ++step) {
    FragmentA q;
    LoadMatrices(q.x, queries + SwizzledOffset<kPieces>(lane % 16, 2 * step + lane / 16));
    FragmentB b[kChunkWarpKeys / 16][2];
#pragma unroll
    for (int i = 0; i < kChunkWarpKeys / 16; ++i) LoadKeys<kPieces>(b[i], keys, 16 * i, step, lane);
#pragma unroll
    for (int i = 0; i < kChunkWarpKeys / 8; ++i) Mma(scores[i], q, b[i / 2][i % 2]);
  }
  if (first_key + kChunkWarpKeys <= num_keys) return;
  const int last_keys[2] = {num_keys - 1, num_keys - 1};
#pragma unroll
  for (int i = 0; i < kChunkWarpKeys / 8; ++i) MaskScores(scores[i], first_key + 8 * i, last_keys, lane);
}

__device__ void StoreMaxima(const FragmentC (&scores)[kChunkWarpKeys / 8], int warp, bool two_rows,
                            unsigned lane, ChunkShared* shared) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (row == 1 && !two_rows) break;
    const float max = MaxScore(scores, row);
    if (lane % 4 == 0) shared->maxima[warp][lane / 4 + 8 * row] = max;
  }
}

// The maxima after a tile.
__device__ void TakeTileMaxima(const ChunkShared& shared, int tile, bool two_rows, unsigned lane,
                               float (&max)[2]) {
#pragma unroll
  for (int warp = 0; warp < kChunkWarpsPerTile; ++warp) {
    const float* maxima = shared.maxima[tile * kChunkWarpsPerTile + warp];
    max[0] = fmaxf(max[0], maxima[lane / 4]);
    if (two_rows) max[1] = fmaxf(max[1], maxima[lane / 4 + 8]);
  }
}

// P of this warp's keys to shared memory.
__device__ void StoreProbabilities(const FragmentC (&scores)[kChunkWarpKeys / 8], int warp, bool two_rows,
                                   float c, unsigned lane, ChunkShared* shared) {
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int tile = 0; tile <= warp / kChunkWarpsPerTile; ++tile)
    TakeTileMaxima(*shared, tile, two_rows, lane, max);
#pragma unroll
  for (int s = 0; s < kChunkWarpKeys / 16; ++s) {
    FragmentA p = {};
    p.x[0] = Probabilities(scores[2 * s].x[0], scores[2 * s].x[1], max[0], c);
    p.x[2] = Probabilities(scores[2 * s + 1].x[0], scores[2 * s + 1].x[1], max[0], c);
    if (two_rows) {
      p.x[1] = Probabilities(scores[2 * s].x[2], scores[2 * s].x[3], max[1], c);
      p.x[3] = Probabilities(scores[2 * s + 1].x[2], scores[2 * s + 1].x[3], max[1], c);
    }
    shared->probabilities[warp * (kChunkWarpKeys / 16) + s][lane] = p;
  }
}

// O of a warp's columns, and l, over all keys.
template <int kDim>
__device__ void MultiplyValues(uint32_t values, const ChunkShared& shared, int num_tiles, int warp,
                               bool two_rows, float c, unsigned lane,
                               ChunkState<kChunkWarpColumns / 8>* state) {
  state->Start();
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    TakeTileMaxima(shared, tile, two_rows, lane, max);
    state->Rescale(max, c);
#pragma unroll
    for (int s = 0; s < kAttentionTile / 16; ++s) {
      const FragmentA p = shared.probabilities[tile * (kAttentionTile / 16) + s][lane];
      FragmentB b[2];
      LoadValues<kDim / kPieceHalves>(b, values + (tile * kAttentionTile + 16 * s) * kDim * 2, 0, warp, lane);
      Mma(state->out[0], p, b[0]);
      Mma(state->out[1], p, b[1]);
      Mma(state->sum, p, Ones());
    }
  }
}

// O / l of a warp's columns.
template <int kDim>
__device__ inline void StoreChunk(const AttentionArgs& args, const AttentionItem& item, int kv_head, int warp,
                                  bool two_rows, unsigned lane,
                                  const ChunkState<kChunkWarpColumns / 8>& state) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (row == 1 && !two_rows) break;
    const unsigned virtual_row = lane / 4 + 8 * row;
    if (static_cast<int>(virtual_row) >= item.num_virtual) continue;
    Half* to = args.out + RowOffset(args, item, 0, kv_head) + virtual_row * kDim + warp * kChunkWarpColumns +
               lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kChunkWarpColumns / 8; ++i) {
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
  const ChunkWork work = MakeChunkWork(args.block_tables, args.table_stride, item,
                                       blockIdx.x % args.num_kv_heads, static_cast<int>(lane));
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

  FragmentC scores[kChunkWarpKeys / 8];
  ComputeScores<kDim>(keys + warp * kChunkWarpKeys * kDim * 2, queries, warp * kChunkWarpKeys, work.num_keys,
                      lane, scores);
  StoreMaxima(scores, warp, two_rows, lane, &shared.chunk);
  __syncthreads();  // the maxima are there
  StoreProbabilities(scores, warp, two_rows, c, lane, &shared.chunk);
  __syncthreads();  // P is there
  const bool has_columns = warp * kChunkWarpColumns < kDim;
  ChunkState<kChunkWarpColumns / 8> state;
  if (has_columns) {
    MultiplyValues<kDim>(values, shared.chunk, work.num_tiles, warp, two_rows, c, lane, &state);
    if (item.num_items == 1) {
      StoreChunk<kDim>(args, item, work.kv_head, warp, two_rows, lane, state);
    } else {
      StorePartial(
          PartialOf(args, item.chunk_begin == 0 ? item.tile_partial : item.first_partial, work.kv_head), kDim,
          item.num_virtual, warp * kChunkWarpColumns, warp == 0, state.max, state.sum.x[0], state.sum.x[2],
          state.out, lane);
    }
  }
  if (item.num_items <= 1) return;
  __syncthreads();  // the partial is stored
  if (threadIdx.x == 0) {
    const int done_before = CountItem(args, item, work.kv_head);
    shared.is_last = IsLastItem(args, item, work.kv_head, done_before);
  }
  __syncthreads();
  if (!shared.is_last) return;
  MergePartials<kChunkWarps>(args, item, work.kv_head, c,
                             reinterpret_cast<MergeFactors*>(shared.chunk.probabilities));
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
