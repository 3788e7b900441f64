// Attention over paged KV, one tile of at most 16 virtual rows and any range of key chunks a block: decode
// rows, short chunks of prefills, head dims that AttentionPrefill does not know. The formula is in
// attention.h.
//
// Geometry: 4 warps a block; a block takes one KV head of the items of a list. Of a chunk of 256 keys, warp
// w computes the scores of keys 64 w .. 64 w + 63; maxima and P meet in shared memory; then warp w computes
// columns w d / 4 .. of O over all keys of the chunk, in ascending order. Each warp streams what it alone
// reads (its keys' K, its columns' V) through a ring of its own, which runs ahead into the next chunks and
// items, so that a chunk costs two barriers and waits for no other warp's loads. Shared memory: 4 rings of
// kStages units of 32 d bytes, Q, P (8 KiB), maxima: 93 KiB for d = 128. Alignment: q 4 bytes, out and pool
// 16 bytes. Bytes: K and V of the items' keys once each KV head; shared tiles also write and read 64 d a
// chunk and row. FLOPs: 4 d a key, row and query head, on tiles padded to 16 rows. Reference:
// reference::Attention, whose dot products add in another order (1 fp16 ulp).
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_split_ring.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace ridge::kernels::cuda {
namespace {

using namespace attention_split;

struct BlockItem {
  AttentionItem item;
  int is_last;  // whether it was its tile's last to be done
};
constexpr int kItemWords = sizeof(AttentionItem) / sizeof(int32_t);
static_assert(kItemWords <= kWarpThreads);

template <int kDim>
struct alignas(16) BlockShared {
  FragmentA queries[Shape<kDim>::kSteps][kWarpThreads];
  FragmentA probabilities[kChunk / 16][kWarpThreads];
  float maxima[2][kWarps]
              [kRows];  // of this chunk and of the one before it, which slower warps may still read
  BlockItem items[4];   // the one before last, the last one, this one, the next one
};

// A block's work on its items, one after another. While K and V stream, whatever else is read from global
// memory waits behind them for microseconds; so what lies between two items has an item's time: the next
// item's queries and the description of the one after it are asked for when an item begins, and whether an
// item was the last of its tile is asked when the next one begins, and looked at when that one is done.
template <int kDim>
class SplitTiles {
  using S = Shape<kDim>;

 public:
  __device__ SplitTiles(const AttentionArgs& args, const AttentionItem* items, const BlockWork& work,
                        BlockShared<kDim>* shared, Ring<kDim>* ring, unsigned warp, unsigned lane)
      : args_(args),
        items_(items),
        kv_head_(work.kv_head),
        shared_(*shared),
        ring_(*ring),
        warp_(static_cast<int>(warp)),
        lane_(lane),
        c_(ScoreScale(args.head_dim)) {
    LoadItem(work.first_item);
    StoreItem(0);
    __syncthreads();
    LoadItem(shared_.items[0].item.next);
  }

  // All items; the kernels before are done. An item takes three turns: it is computed, counted and, where it
  // was its tile's last, has the tile folded; each behind the barrier of its turn.
  __device__ void Run() {
    LoadQueries(shared_.items[0].item);
    bool computes = true, counts = false, merges = false;
#pragma unroll 1
    for (int turn = 0; computes || counts || merges; ++turn) {
      if (computes) {
        StoreQueries();
        StoreItem(turn + 1);
      }
      if (merges) StoreCount(shared_.items[(turn - 2) % 4]);
      __syncthreads();  // the queries are there, and all that the last item left
      if (counts) Count(shared_.items[(turn - 1) % 4].item);
      if (merges) MergeIfLast(shared_.items[(turn - 2) % 4]);
      merges = counts;
      counts = computes;
      if (!computes) continue;
      const AttentionItem& item = shared_.items[turn % 4].item;
      computes = item.next >= 0;
      if (computes) {
        const AttentionItem& next = shared_.items[(turn + 1) % 4].item;
        LoadQueries(next);
        LoadItem(next.next);
      }
      RunItem(item);
    }
  }

 private:
  // The description of an item, a word a lane of warp 0.
  __device__ void LoadItem(int item) {
    if (warp_ == 0 && static_cast<int>(lane_) < kItemWords && item >= 0)
      next_word_ = __ldg(reinterpret_cast<const int32_t*>(items_ + item) + lane_);
  }

  __device__ void StoreItem(int turn) {
    if (warp_ == 0 && static_cast<int>(lane_) < kItemWords)
      reinterpret_cast<int32_t*>(&shared_.items[turn % 4].item)[lane_] = next_word_;
  }

  // Those that were on their way to registers.
  __device__ void StoreQueries() {
    // Nobody reads the last item's queries any more: its last scores lie two barriers back.
#pragma unroll
    for (int i = 0; i < kWarpSteps; ++i) shared_.queries[warp_ + i * kWarps][lane_] = next_queries_[i];
    positions_[0] = next_positions_[0];
    positions_[1] = next_positions_[1];
  }

  __device__ static bool IsShared(const AttentionItem& item) {
    return item.num_items > 1;
  }

  // By a thread of a warp that has little else to do.
  __device__ void Count(const AttentionItem& item) {
    if (threadIdx.x == kThreads - 1 && IsShared(item)) done_before_ = CountItem(args_, item, kv_head_);
  }

  __device__ void StoreCount(BlockItem& done) {
    if (threadIdx.x == kThreads - 1 && IsShared(done.item))
      done.is_last = IsLastItem(args_, done.item, kv_head_, done_before_);
  }

  __device__ void MergeIfLast(const BlockItem& done) {
    if (!IsShared(done.item) || !done.is_last) return;
    // Nobody reads the last item's P any more.
    MergePartials<kWarps, S::kMergeLoads>(args_, done.item, kv_head_, c_,
                                          reinterpret_cast<MergeFactors*>(shared_.probabilities));
  }

  __device__ void LoadQueries(const AttentionItem& item) {
    const LaneRows rows = MakeLaneRows(args_, item, item.first_virtual, kv_head_, lane_);
#pragma unroll
    for (int i = 0; i < kWarpSteps; ++i) next_queries_[i] = LoadQuery(args_, rows, warp_ + i * kWarps, lane_);
    next_positions_[0] = rows.position[0];
    next_positions_[1] = rows.position[1];
  }

  __device__ void RunItem(const AttentionItem& item) {
    two_rows_ = item.num_virtual > kRows / 2;
    SoftmaxState<S::kOutTiles> folded;
    const int chunk_begin = item.chunk_begin, chunk_end = item.chunk_end;
#pragma unroll 1
    for (int chunk = chunk_begin; chunk < chunk_end; ++chunk) {
      ChunkState<S::kOutTiles> state;
      RunChunk(item, chunk * kChunk, &state);
      if (chunk_begin == 0) {
        Fold(state, chunk == 0, c_, &folded);
      } else {
        Store(item, item.first_partial + chunk - chunk_begin, state.max, state.sum.x[0], state.sum.x[2],
              state.out);
      }
    }
    if (chunk_begin > 0) return;
    if (item.num_partials == 1) {
      StoreOutput(args_, MakeLaneRows(args_, item, item.first_virtual, kv_head_, lane_), folded,
                  warp_ * S::kWarpColumns, lane_);
    } else {
      Store(item, item.tile_partial, folded.max, folded.sum[0], folded.sum[1], folded.out);
    }
  }

  __device__ void RunChunk(const AttentionItem& item, int first_key, ChunkState<S::kOutTiles>* state) {
    turn_ = 1 - turn_;
    // A chunk that no row sees is computed like the others, and leaves the maximum that Fold takes for
    // nothing.
    const int num_keys = first_key < item.num_keys ? item.num_keys : item.num_read;
    const int tiles = min(kTiles, (num_keys - first_key + kTile - 1) / kTile);
    FragmentC scores[kWarpKeys / 8];
    ComputeScores(first_key + warp_ * kWarpKeys, num_keys, scores);
    __syncthreads();  // the maxima are there
    float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile <= warp_ / kWarpsPerTile) TakeTileMaxima(tile, max);
    }
#pragma unroll
    for (int s = 0; s < kKeyUnits; ++s) {
      shared_.probabilities[warp_ * kKeyUnits + s][lane_] =
          ProbabilityFragment(scores[2 * s], scores[2 * s + 1], max, c_, two_rows_);
    }
    __syncthreads();  // P is there
    state->Start();
    max[0] = max[1] = -INFINITY;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      TakeTileMaxima(tile, max);
      ring_.template Wait<1>();
      if (tile < tiles) {
        state->Rescale(max, c_);
        MultiplyValues(tile, ring_.Unit(0), state);
      }
      ring_.template Release<1>();
    }
  }

  // The maxima after a tile.
  __device__ void TakeTileMaxima(int tile, float (&max)[2]) const {
#pragma unroll
    for (int warp = 0; warp < kWarpsPerTile; ++warp) {
      const float* maxima = shared_.maxima[turn_][tile * kWarpsPerTile + warp];
      max[0] = fmaxf(max[0], maxima[lane_ / 4]);
      if (two_rows_) max[1] = fmaxf(max[1], maxima[lane_ / 4 + 8]);
    }
  }

  // The scores of this warp's keys, masked, and their maxima to shared memory.
  __device__ void ComputeScores(int first_key, int num_keys, FragmentC (&scores)[kWarpKeys / 8]) {
#pragma unroll
    for (int i = 0; i < kWarpKeys / 8; ++i) scores[i] = {};
#pragma unroll
    for (int unit = 0; unit < kKeyUnits; unit += 2) {
      ring_.template Wait<2>();
      if (first_key + unit * kUnitKeys < num_keys) {
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
          if (!S::kExact && step * 16 >= args_.head_dim) break;
          const FragmentA q = shared_.queries[step][lane_];
          FragmentB keys[2][2];
#pragma unroll
          for (int i = 0; i < 2; ++i) LoadKeys<S::kKeyPieces>(keys[i], ring_.Unit(i), 0, step, lane_);
#pragma unroll
          for (int i = 0; i < 4; ++i) Mma(scores[2 * unit + i], q, keys[i / 2][i % 2]);
        }
      }
      ring_.template Release<2>();
    }
    // Some row does not see some key.
    if (__any_sync(0xFFFFFFFFu, first_key + kWarpKeys - 1 > positions_[0])) {
#pragma unroll
      for (int i = 0; i < kWarpKeys / 8; ++i) MaskScores(scores[i], first_key + 8 * i, positions_, lane_);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (row == 1 && !two_rows_) break;
      const float max = MaxScore(scores, row);
      if (lane_ % 4 == 0) shared_.maxima[turn_][warp_][lane_ / 4 + 8 * row] = max;
    }
  }

  __device__ void MultiplyValues(int tile, uint32_t values, ChunkState<S::kOutTiles>* state) {
#pragma unroll
    for (int s = 0; s < kTile / 16; ++s) {
      const FragmentA p = shared_.probabilities[tile * (kTile / 16) + s][lane_];
      FragmentB b[S::kOutTiles / 2][2];
#pragma unroll
      for (int pair = 0; pair < S::kOutTiles / 2; ++pair)
        LoadValues<S::kValuePieces>(b[pair], values, 16 * s, pair, lane_);
#pragma unroll
      for (int i = 0; i < S::kOutTiles; ++i) Mma(state->out[i], p, b[i / 2][i % 2]);
      Mma(state->sum, p, Ones());
    }
  }

  __device__ void Store(const AttentionItem& item, int partial, const float (&max)[2], float sum0, float sum1,
                        const FragmentC (&out)[S::kOutTiles]) {
    StorePartial(PartialOf(args_, partial, kv_head_), args_.head_dim, item.num_virtual,
                 warp_ * S::kWarpColumns, warp_ == 0, max, sum0, sum1, out, lane_);
  }

  static constexpr int kWarpSteps = S::kSteps / kWarps;  // whose queries a warp brings

  const AttentionArgs& args_;
  const AttentionItem* items_;
  const int kv_head_;
  BlockShared<kDim>& shared_;
  Ring<kDim>& ring_;
  const int warp_;
  const unsigned lane_;
  const float c_;
  int positions_[2];       // of this lane's rows
  bool two_rows_ = false;  // whether the second of them is one
  int turn_ = 0;           // of shared_.maxima
  FragmentA next_queries_[kWarpSteps];
  int next_positions_[2];
  int32_t next_word_ = 0;  // of the item after the next one
  int done_before_ = 0;    // items of its tile, when the last item was counted
};

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    AttentionSplitKernel(const __grid_constant__ AttentionArgs args, AttentionWork work) {
  using S = Shape<kDim>;
  extern __shared__ __align__(128) uint8_t rings[];
  __shared__ BlockShared<kDim> shared;
  const unsigned warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const BlockWork own = MakeBlockWork(args, work);
  if (own.first_item < 0) return LaunchNextKernel();
  Ring<kDim> ring(args, work.items, own, SharedAddress(rings) + warp * S::kStages * S::kUnitBytes, warp,
                  lane);
  const bool early = ring.StartsWithOldKeys();
  if (early) ring.Fill();
  SplitTiles<kDim> tiles(args, work.items, own, &shared, &ring, warp, lane);
  LaunchNextKernel();
  WaitForPriorKernel();
  if (!early) ring.Fill();
  tiles.Run();
  WaitForCopies<0>();
}

template <int kDim>
cudaError_t Launch(const AttentionArgs& args, const AttentionWork& work, int32_t num_blocks,
                   cudaStream_t stream) {
  constexpr int kBytes = Shape<kDim>::kSharedBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(AttentionSplitKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(AttentionSplitKernel<kDim>, dim3(num_blocks), kThreads, kBytes, stream, args, work);
}

}  // namespace

size_t AttentionPartialBytes(int32_t max_partials, int32_t num_kv_heads, int32_t head_dim) {
  return static_cast<size_t>(max_partials * num_kv_heads * PartialFloats(head_dim)) * sizeof(float);
}

size_t AttentionCounterBytes(int32_t max_shared_tiles, int32_t num_kv_heads) {
  return static_cast<size_t>(max_shared_tiles) * num_kv_heads * sizeof(int32_t);
}

cudaError_t AttentionSplitBlocks(int32_t head_dim, int32_t num_sms, int32_t* num_blocks) {
  int per_sm = 0;
  const auto query = [&](auto kernel, int bytes) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kThreads, bytes);
  };
  const cudaError_t error = head_dim == 64    ? query(AttentionSplitKernel<64>, Shape<64>::kSharedBytes)
                            : head_dim == 128 ? query(AttentionSplitKernel<128>, Shape<128>::kSharedBytes)
                                              : query(AttentionSplitKernel<256>, Shape<256>::kSharedBytes);
  *num_blocks = per_sm * num_sms;
  return error;
}

cudaError_t LaunchAttentionSplit(const AttentionArgs& args, const AttentionWork& work, int32_t num_blocks,
                                 cudaStream_t stream) {
  const bool supported = args.head_dim % 16 == 0 && args.head_dim <= 256 &&
                         args.num_heads % args.num_kv_heads == 0 &&
                         args.num_heads / args.num_kv_heads <= kAttentionSplitRows;
  if (!supported) return cudaErrorInvalidValue;
  num_blocks = std::max(num_blocks / args.num_kv_heads, 1) * args.num_kv_heads;
  if (args.head_dim == 64) return Launch<64>(args, work, num_blocks, stream);
  if (args.head_dim == 128) return Launch<128>(args, work, num_blocks, stream);
  return Launch<256>(args, work, num_blocks, stream);
}

}  // namespace ridge::kernels::cuda
