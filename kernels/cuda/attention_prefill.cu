// Attention over paged KV for long runs of rows: 128 virtual rows and all keys that they see a block. The
// formula is in attention.h; the bits are AttentionSplit's.
//
// Geometry: a block an (item, KV head), 8 warps of 16 virtual rows each, which share the K and V tiles of 64
// keys in shared memory, two tiles deep. A warp keeps its rows' S, P, O and folded O in registers, Q in
// shared memory in the order of its operands. Blocks with more keys come first. Shared memory: 768 d bytes
// (96 KiB for d = 128). Alignment: q, out 4 bytes, pool 16 bytes. Bytes: K and V of the keys once a block.
// FLOPs: 4 d a key, row and query head, half of them saved by the causal mask. Reference:
// reference::Attention (1 fp16 ulp).
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpThreads;
constexpr int kTile = kAttentionTile;
constexpr int kChunkTiles = kAttentionChunk / kTile;
constexpr int kTilePages = kTile / kKvBlockTokens;
constexpr int kStages = 2;
constexpr int kWarpRows = kAttentionPrefillRows / kWarps;
static_assert(kWarpRows == 16);

template <int kDim>
struct Shape {
  static constexpr unsigned kPieces = kDim / kPieceHalves;
  static constexpr int kTileBytes = kTile * kDim * 2;  // of K, and of V
  static constexpr int kSteps = kDim / 16;
  static constexpr int kQueryBytes = kAttentionPrefillRows * kDim * 2;
  static constexpr int kSharedBytes = kStages * 2 * kTileBytes + kQueryBytes;
  static constexpr int kOutTiles = kDim / 8;
};

// The blocks of a tile's pages, one a lane; 0 (never read) beyond the last page.
__device__ int32_t LoadPages(const int32_t* table, int tile, int num_pages, unsigned lane) {
  const int page = tile * kTilePages + static_cast<int>(lane);
  return lane < kTilePages && page < num_pages ? table[page] : 0;
}

// Copies a tile's K and V, the whole block together. Keys beyond the last page become zeros: their P is 0,
// and 0 times what stood there might not be.
template <int kDim>
__device__ void IssueTile(const AttentionArgs& args, int32_t pages, int64_t head_offset, int tile,
                          int num_pages, uint32_t shared) {
  using S = Shape<kDim>;
#pragma unroll
  for (unsigned turn = 0; turn < kTile * S::kPieces / kThreads; ++turn) {
    const unsigned i = turn * kThreads + threadIdx.x;
    const unsigned key = i / S::kPieces, piece = i % S::kPieces;
    const int64_t block = __shfl_sync(0xFFFFFFFFu, pages, static_cast<int>(key / kKvBlockTokens));
    const bool valid = tile * kTilePages + static_cast<int>(key / kKvBlockTokens) < num_pages;
    const Half* from = args.kv.pool + (block * args.kv.block_stride + head_offset) +
                       (key % kKvBlockTokens * S::kPieces + piece) * kPieceHalves;
    const uint32_t to = shared + SwizzledOffset<S::kPieces>(key, piece);
    CopyAsync16(to, from + args.kv.key_offset, valid);
    CopyAsync16(to + S::kTileBytes, from + args.kv.value_offset, valid);
  }
  CommitCopies();
}

template <int kDim>
struct WarpState {
  ChunkState<Shape<kDim>::kOutTiles> chunk;
  SoftmaxState<Shape<kDim>::kOutTiles> folded;
};

// One tile of keys for a warp's 16 rows. `queries`: this lane's operand of each step, kWarpThreads apart.
template <int kDim>
__device__ void AttendTile(uint32_t shared, const FragmentA* queries, int first_key, bool mask,
                           const int (&positions)[2], float c, unsigned lane, WarpState<kDim>* state) {
  using S = Shape<kDim>;
  // Keeps the compiler from holding the offsets of all loads in registers from tile to tile.
  asm volatile("" : "+r"(lane));
  FragmentC scores[kTile / 8];
#pragma unroll
  for (int i = 0; i < kTile / 8; ++i) scores[i] = {};
#pragma unroll 4
  for (int step = 0; step < S::kSteps; ++step) {
    const FragmentA q = queries[step * kWarpThreads];
    FragmentB keys[kTile / 16][2];
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) LoadKeys<S::kPieces>(keys[i], shared, 16 * i, step, lane);
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) Mma(scores[i], q, keys[i / 2][i % 2]);
  }
  if (mask) {
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) MaskScores(scores[i], first_key + 8 * i, positions, lane);
  }
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < kTile / 8; ++i) {
    max[0] = fmaxf(max[0], fmaxf(scores[i].x[0], scores[i].x[1]));
    max[1] = fmaxf(max[1], fmaxf(scores[i].x[2], scores[i].x[3]));
  }
  max[0] = fmaxf(state->chunk.max[0], RowMax(max[0]));
  max[1] = fmaxf(state->chunk.max[1], RowMax(max[1]));
  state->chunk.Rescale(max, c);
#pragma unroll
  for (int s = 0; s < kTile / 16; ++s) {
    const FragmentA p = ProbabilityFragment(scores[2 * s], scores[2 * s + 1], max, c);
#pragma unroll
    for (int pair = 0; pair < S::kOutTiles / 2; pair += 2) {
      FragmentB values[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        LoadValues<S::kPieces>(values[i], shared + S::kTileBytes, 16 * s, pair + i, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) Mma(state->chunk.out[2 * pair + i], p, values[i / 2][i % 2]);
    }
    Mma(state->chunk.sum, p, Ones());
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    AttentionPrefillKernel(const __grid_constant__ AttentionArgs args, const AttentionItem* items) {
  using S = Shape<kDim>;
  extern __shared__ __align__(128) uint8_t tiles[];
  const uint32_t shared = SharedAddress(tiles);
  const int warp = threadIdx.x / kWarpThreads;
  const unsigned lane = threadIdx.x % kWarpThreads;
  WaitForPriorKernel();
  LaunchNextKernel();
  const AttentionItem item = items[blockIdx.x / args.num_kv_heads];
  const int kv_head = blockIdx.x % args.num_kv_heads;
  const int32_t* table = args.block_tables + static_cast<int64_t>(item.table_row) * args.table_stride;
  const int64_t head_offset = static_cast<int64_t>(kv_head) * kKvBlockTokens * kDim;
  const int num_keys = item.num_keys;
  const int num_pages = (num_keys + kKvBlockTokens - 1) / kKvBlockTokens;
  const int num_tiles = (num_keys + kTile - 1) / kTile;
  const float c = ScoreScale(kDim);

  const int group = args.num_heads / args.num_kv_heads;
  const bool has_rows = warp * kWarpRows < item.num_virtual;
  const int first_virtual = item.first_virtual + warp * kWarpRows;
  const int last_virtual = min(first_virtual + kWarpRows, item.first_virtual + item.num_virtual) - 1;
  const int last_position = has_rows ? item.first_position + last_virtual / group : -1;

  IssueTile<kDim>(args, LoadPages(table, 0, num_pages, lane), head_offset, 0, num_pages, shared);
  int32_t next_pages = LoadPages(table, 1, num_pages, lane);  // asked for a tile before they are needed
  auto* queries = reinterpret_cast<FragmentA*>(tiles + kStages * 2 * S::kTileBytes) +
                  warp * S::kSteps * kWarpThreads + lane;
  int positions[2];
  {
    const LaneRows rows = MakeLaneRows(args, item, first_virtual, kv_head, lane);
    positions[0] = rows.position[0];
    positions[1] = rows.position[1];
    for (int step = 0; step < S::kSteps; ++step)
      queries[step * kWarpThreads] = LoadQuery(args, rows, step, lane);
  }
  WarpState<kDim> state;
  for (int tile = 0; tile < num_tiles; ++tile) {
    const uint32_t current = shared + tile % kStages * 2 * S::kTileBytes;
    WaitForCopies<0>();
    __syncthreads();  // the tile is there, and nobody reads the one before it any more
    if (tile + 1 < num_tiles) {
      IssueTile<kDim>(args, next_pages, head_offset, tile + 1, num_pages,
                      shared + (tile + 1) % kStages * 2 * S::kTileBytes);
      next_pages = LoadPages(table, tile + 2, num_pages, lane);
    }
    const int first_key = tile * kTile;
    if (first_key > last_position) continue;  // nobody sees it
    if (tile % kChunkTiles == 0) state.chunk.Start();
    const bool mask = __any_sync(0xFFFFFFFFu, first_key + kTile - 1 > positions[0]);
    AttendTile<kDim>(current, queries, first_key, mask, positions, c, lane, &state);
    const bool ends = (tile + 1) % kChunkTiles == 0 || first_key + kTile > last_position;
    if (ends) Fold(state.chunk, tile < kChunkTiles, c, &state.folded);
  }
  if (last_position < 0) return;
  // Made again, and from memory: not worth registers during the loop.
  const LaneRows rows =
      MakeLaneRows(args, items[blockIdx.x / args.num_kv_heads], first_virtual, kv_head, lane);
  StoreOutput(args, rows, state.folded, 0, lane);
}

template <int kDim>
cudaError_t Launch(const AttentionArgs& args, const AttentionItem* items, int32_t num_items,
                   cudaStream_t stream) {
  constexpr int kBytes = Shape<kDim>::kSharedBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(AttentionPrefillKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(AttentionPrefillKernel<kDim>, dim3(num_items * args.num_kv_heads), kThreads, kBytes,
                         stream, args, items);
}

}  // namespace

cudaError_t LaunchAttentionPrefill(const AttentionArgs& args, const AttentionItem* items, int32_t num_items,
                                   cudaStream_t stream) {
  if (args.head_dim == 64) return Launch<64>(args, items, num_items, stream);
  if (args.head_dim == 128) return Launch<128>(args, items, num_items, stream);
  return cudaErrorInvalidValue;
}

}  // namespace ridge::kernels::cuda
