// Attention over paged KV, one tile of at most 16 virtual rows and any range of key chunks a block: decode
// rows, short chunks of prefills, head dims that AttentionPrefill does not know. The formula is in
// attention.h.
//
// Geometry: 4 warps a block; blocks stay and take (item, KV head) pairs in turn. Of a chunk of 256 keys, warp
// w computes the scores of keys 64 w .. 64 w + 63; maxima and P meet in shared memory; then warp w computes
// columns w d / 4 .. of O over all keys of the chunk, in ascending order. Each warp streams what it alone
// reads (its keys' K, its columns' V) through a ring of its own, which runs ahead into the next chunks and
// items, so that a chunk costs two barriers and waits for no other warp's loads. Shared memory: 4 rings of
// kStages units of 32 d bytes, Q, P (8 KiB), maxima: 93 KiB for d = 128. Alignment: q, out 4 bytes, pool 16
// bytes. Bytes: K and V of the items' keys once each KV head; shared tiles also write and read 64 d a chunk
// and row. FLOPs: 4 d a key, row and query head, on tiles padded to 16 rows. Reference: reference::Attention,
// whose dot products add in another order (1 fp16 ulp).
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace ridge::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpThreads;
constexpr int kRows = kAttentionSplitRows;
constexpr int kChunk = kAttentionChunk;
constexpr int kTile = kAttentionTile;
constexpr int kTiles = kChunk / kTile;
constexpr int kWarpKeys = kChunk / kWarps;  // whose scores a warp computes
constexpr int kWarpsPerTile = kTile / kWarpKeys;
constexpr int kUnitKeys = 16;  // of a K unit: one KV block
constexpr int kKeyUnits = kWarpKeys / kUnitKeys;
constexpr int kValueUnits = kTiles;  // a V unit has the keys of a tile
constexpr int kUnits = kKeyUnits + kValueUnits;
constexpr int kTilePages = kTile / kKvBlockTokens;
constexpr int kChunkPages = kChunk / kKvBlockTokens;
static_assert(kUnitKeys == kKvBlockTokens && kKeyUnits % 2 == 0 && kChunkPages <= kWarpThreads);

// kDim is 64 or 128 and head_dim equal to it, or 256 and head_dim any smaller multiple of 16.
template <int kDim>
struct Shape {
  static constexpr bool kExact = kDim <= 128;
  static constexpr int kSteps = kDim / 16;            // of the chains over head_dim
  static constexpr int kWarpColumns = kDim / kWarps;  // of O
  static constexpr int kOutTiles = kWarpColumns / 8;
  static constexpr unsigned kKeyPieces = kDim / kPieceHalves;
  static constexpr unsigned kValuePieces = kWarpColumns / kPieceHalves;
  static constexpr int kUnitBytes = 2 * kUnitKeys * kDim;
  static_assert(2 * kTile * kWarpColumns == kUnitBytes);
  static constexpr unsigned kCopies = kUnitBytes / kPieceBytes / kWarpThreads;  // a lane and unit
  static constexpr int kStages = kDim == 64 ? 8 : kDim == 128 ? 5 : 2;
  static constexpr int kSharedBytes = kWarps * kStages * kUnitBytes;
};

template <int kDim>
struct BlockShared {
  FragmentA queries[Shape<kDim>::kSteps][kWarpThreads];
  FragmentA probabilities[kChunk / 16][kWarpThreads];
  float maxima[2][kWarps]
              [kRows];  // of this chunk and of the one before it, which slower warps may still read
  int last_item;
};

// A (chunk, KV head) that a block works on, as the loader needs it.
struct ChunkSource {
  const int32_t* table;  // the sequence's block table
  int64_t head_offset;   // of the KV head in a block, in elements
  int chunk;
  int chunk_end;  // of the item
  int num_pages;
  int first_position;  // of the run: keys before it were written by earlier steps
};

// Walks the chunks of the block's items in order.
class ChunkWalk {
 public:
  __device__ ChunkWalk(const AttentionArgs& args, const AttentionItem* items, int num_work)
      : args_(args), items_(items), num_work_(num_work), work_(blockIdx.x) {}

  __device__ bool Done() const { return work_ >= num_work_; }

  __device__ ChunkSource FirstChunk() const {
    const unsigned kv_heads = args_.num_kv_heads;
    const AttentionItem& item = items_[static_cast<unsigned>(work_) / kv_heads];
    return {args_.block_tables + static_cast<int64_t>(item.table_row) * args_.table_stride,
            static_cast<int64_t>(static_cast<unsigned>(work_) % kv_heads) * kKvBlockTokens * args_.head_dim,
            item.chunk_begin,
            item.chunk_end,
            (item.num_read + kKvBlockTokens - 1) / kKvBlockTokens,
            item.first_position};
  }

  // False after the last chunk of all.
  __device__ bool Advance(ChunkSource* source) {
    if (++source->chunk < source->chunk_end) return true;
    work_ += gridDim.x;
    if (Done()) return false;
    *source = FirstChunk();
    return true;
  }

 private:
  const AttentionArgs& args_;
  const AttentionItem* items_;
  int num_work_;
  int work_;
};

// A warp's ring of units: per chunk its K units, then its V units.
template <int kDim>
class Ring {
  using S = Shape<kDim>;

 public:
  __device__ Ring(const AttentionArgs& args, const AttentionItem* items, int num_work, uint32_t shared,
                  unsigned warp, unsigned lane)
      : args_(args), walk_(args, items, num_work), shared_(shared), warp_(warp), lane_(lane) {
    more_ = !walk_.Done();
    if (more_) {
      current_ = walk_.FirstChunk();
      page_ = LoadPage(current_);
      PrepareNext();
    }
  }

  // Whether the first units hold nothing that this step writes.
  __device__ bool StartsWithOldKeys() const {
    return more_ && (current_.chunk + 1) * kChunk <= current_.first_position && S::kStages <= kUnits;
  }

  __device__ void Fill() {
#pragma unroll 1
    for (int i = 0; i < S::kStages; ++i) Issue();
  }

  // Waits for the next kCount units.
  template <int kCount>
  __device__ void Wait() {
    static_assert(kCount <= S::kStages);
    WaitForCopies<S::kStages - kCount>();
    __syncwarp();
  }

  // The shared address of the unit that is `ahead` units from the next one.
  __device__ uint32_t Unit(int ahead) const {
    return shared_ + Wrapped(read_ + ahead) * S::kUnitBytes;
  }

  // Gives the next kCount units' room to the units that follow.
  template <int kCount>
  __device__ void Release() {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) Issue();
    read_ = Wrapped(read_ + kCount);
  }

 private:
  static __device__ int Wrapped(int stage) {
    return stage < S::kStages ? stage : stage - S::kStages;
  }

  // Lane i holds the block of page i of the chunk; 0 (never read) beyond the last page.
  __device__ int32_t LoadPage(const ChunkSource& source) const {
    const int page = source.chunk * kChunkPages + static_cast<int>(lane_);
    return lane_ < kChunkPages && page < source.num_pages ? source.table[page] : 0;
  }

  // Asks for the next chunk's pages a chunk before they are needed.
  __device__ void PrepareNext() {
    next_ = current_;
    has_next_ = walk_.Advance(&next_);
    if (has_next_) next_page_ = LoadPage(next_);
  }

  // One group of copies, also where nothing is left to copy: groups are counted.
  __device__ void Issue() {
    if (more_) {
      const uint32_t to = shared_ + write_ * S::kUnitBytes;
      if (unit_ < kKeyUnits) {
        IssueKeys(to);
      } else {
        IssueValues(to);
      }
      if (++unit_ == kUnits) {
        unit_ = 0;
        more_ = has_next_;
        current_ = next_;
        page_ = next_page_;
        if (more_) PrepareNext();
      }
    }
    write_ = Wrapped(write_ + 1);
    CommitCopies();
  }

  __device__ const Half* PageStart(unsigned page_in_chunk, int64_t offset) const {
    const int64_t block = __shfl_sync(0xFFFFFFFFu, page_, static_cast<int>(page_in_chunk));
    return args_.kv.pool + block * args_.kv.block_stride + (current_.head_offset + offset);
  }

  __device__ unsigned RowHalves() const {
    return S::kExact ? kDim : static_cast<unsigned>(args_.head_dim);
  }

  __device__ void IssueKeys(uint32_t to) {
    const unsigned page = warp_ * kKeyUnits + static_cast<unsigned>(unit_);
    if (current_.chunk * kChunkPages + static_cast<int>(page) >= current_.num_pages)
      return;  // masked, whatever
    const Half* from = PageStart(page, args_.kv.key_offset);
#pragma unroll
    for (unsigned turn = 0; turn < S::kCopies; ++turn) {
      const unsigned i = turn * kWarpThreads + lane_;
      const unsigned key = i / S::kKeyPieces, piece = i % S::kKeyPieces;
      if (!S::kExact && piece * kPieceHalves >= RowHalves()) continue;
      CopyAsync16(to + SwizzledOffset<S::kKeyPieces>(key, piece),
                  from + (key * RowHalves() + piece * kPieceHalves));
    }
  }

  // Keys beyond the last page become zeros: their P is 0, and 0 times what the ring held might not be.
  __device__ void IssueValues(uint32_t to) {
    const unsigned first_page = static_cast<unsigned>(unit_ - kKeyUnits) * kTilePages;
    const int pages = current_.num_pages - current_.chunk * kChunkPages - static_cast<int>(first_page);
    if (pages <= 0) return;                                    // the tile is left out
    constexpr unsigned kPageCopies = S::kCopies / kTilePages;  // a lane and page
#pragma unroll
    for (unsigned page = 0; page < kTilePages; ++page) {
      const Half* from = PageStart(first_page + page, args_.kv.value_offset);
      const bool valid = static_cast<int>(page) < pages;
#pragma unroll
      for (unsigned turn = 0; turn < kPageCopies; ++turn) {
        const unsigned i = turn * kWarpThreads + lane_;  // in the page
        const unsigned key = i / S::kValuePieces, piece = i % S::kValuePieces;
        const unsigned column = (warp_ * S::kValuePieces + piece) * kPieceHalves;
        if (!S::kExact && column >= RowHalves()) continue;
        CopyAsync16(to + SwizzledOffset<S::kValuePieces>(page * kKvBlockTokens + key, piece),
                    from + (key * RowHalves() + column), valid);
      }
    }
  }

  const AttentionArgs& args_;
  ChunkWalk walk_;
  ChunkSource current_, next_;
  int32_t page_ = 0, next_page_ = 0;
  bool more_, has_next_ = false;
  const uint32_t shared_;
  const unsigned warp_, lane_;
  int unit_ = 0;   // of the current chunk, to be issued next
  int write_ = 0;  // its stage
  int read_ = 0;
};

// One block's work on one (item, KV head).
template <int kDim>
class SplitTile {
  using S = Shape<kDim>;

 public:
  __device__ SplitTile(const AttentionArgs& args, const AttentionItem& item, int kv_head,
                       BlockShared<kDim>* shared, Ring<kDim>* ring, unsigned warp, unsigned lane)
      : args_(args),
        item_(item),
        kv_head_(kv_head),
        shared_(*shared),
        ring_(*ring),
        warp_(static_cast<int>(warp)),
        lane_(lane),
        c_(ScoreScale(args.head_dim)) {
    const LaneRows rows = MakeLaneRows(args, item, item.first_virtual, kv_head, lane);
    positions_[0] = rows.position[0];
    positions_[1] = rows.position[1];
    // Nobody reads the last item's queries any more: its last scores lie two barriers back.
    for (int step = warp_; step < S::kSteps; step += kWarps)
      shared_.queries[step][lane_] = LoadQuery(args, rows, step, lane_);
    __syncthreads();
  }

  __device__ void Run() {
    SoftmaxState<S::kOutTiles> folded;
    const int chunk_begin = item_.chunk_begin, chunk_end = item_.chunk_end;
#pragma unroll 1
    for (int chunk = chunk_begin; chunk < chunk_end; ++chunk) {
      ChunkState<S::kOutTiles> state;
      RunChunk(chunk * kChunk, &state);
      if (chunk_begin == 0) {
        Fold(state, chunk == 0, c_, &folded);
      } else {
        Store(item_.first_partial + chunk - chunk_begin, state.max, state.sum.x[0], state.sum.x[2], state.out);
      }
    }
    if (item_.num_partials == 1) {
      StoreOutput(args_, MakeLaneRows(args_, item_, item_.first_virtual, kv_head_, lane_), folded,
                  warp_ * S::kWarpColumns, lane_);
      return;
    }
    if (chunk_begin == 0)
      Store(item_.tile_partial, folded.max, folded.sum[0], folded.sum[1], folded.out);
    if (IsLastItem(args_, item_, kv_head_, &shared_.last_item))
      MergePartials<kThreads>(args_, item_, kv_head_, c_);
  }

 private:
  __device__ void RunChunk(int first_key, ChunkState<S::kOutTiles>* state) {
    turn_ = 1 - turn_;
    // A chunk that no row sees is computed like the others, and leaves the maximum that Fold takes for nothing.
    const int num_keys = first_key < item_.num_keys ? item_.num_keys : item_.num_read;
    const int tiles = min(kTiles, (num_keys - first_key + kTile - 1) / kTile);
    FragmentC scores[kWarpKeys / 8];
    ComputeScores(first_key + warp_ * kWarpKeys, num_keys, scores);
    __syncthreads();  // the maxima are there
    float max[2] = {-INFINITY, -INFINITY};
    for (int tile = 0; tile <= warp_ / kWarpsPerTile; ++tile) TakeTileMaxima(tile, max);
#pragma unroll
    for (int s = 0; s < kKeyUnits; ++s) {
      shared_.probabilities[warp_ * kKeyUnits + s][lane_] =
          ProbabilityFragment(scores[2 * s], scores[2 * s + 1], max, c_);
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
      max[1] = fmaxf(max[1], maxima[lane_ / 4 + 8]);
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
    float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kWarpKeys / 8; ++i) {
      max[0] = fmaxf(max[0], fmaxf(scores[i].x[0], scores[i].x[1]));
      max[1] = fmaxf(max[1], fmaxf(scores[i].x[2], scores[i].x[3]));
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      max[row] = RowMax(max[row]);
      if (lane_ % 4 == 0) shared_.maxima[turn_][warp_][lane_ / 4 + 8 * row] = max[row];
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

  __device__ void Store(int partial, const float (&max)[2], float sum0, float sum1,
                        const FragmentC (&out)[S::kOutTiles]) {
    StorePartial(PartialOf(args_, partial, kv_head_), args_.head_dim, item_.num_virtual,
                 warp_ * S::kWarpColumns, warp_ == 0, max, sum0, sum1, out, lane_);
  }

  const AttentionArgs& args_;
  const AttentionItem& item_;
  const int kv_head_;
  BlockShared<kDim>& shared_;
  Ring<kDim>& ring_;
  const int warp_;
  const unsigned lane_;
  const float c_;
  int positions_[2];  // of this lane's rows
  int turn_ = 0;      // of shared_.maxima
};

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    AttentionSplitKernel(const __grid_constant__ AttentionArgs args, AttentionWork work) {
  using S = Shape<kDim>;
  extern __shared__ __align__(128) uint8_t rings[];
  __shared__ BlockShared<kDim> shared;
  const unsigned warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const int num_work = *work.num_items * args.num_kv_heads;
  Ring<kDim> ring(args, work.items, num_work, SharedAddress(rings) + warp * S::kStages * S::kUnitBytes, warp,
                  lane);
  const bool early = ring.StartsWithOldKeys();
  if (early) ring.Fill();
  LaunchNextKernel();
  WaitForPriorKernel();
  if (!early) ring.Fill();
  const unsigned kv_heads = args.num_kv_heads;
  for (unsigned w = blockIdx.x; w < static_cast<unsigned>(num_work); w += gridDim.x) {
    SplitTile<kDim> tile(args, work.items[w / kv_heads], static_cast<int>(w % kv_heads), &shared, &ring, warp,
                         lane);
    tile.Run();
  }
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
  if (args.head_dim == 64) return Launch<64>(args, work, num_blocks, stream);
  if (args.head_dim == 128) return Launch<128>(args, work, num_blocks, stream);
  return Launch<256>(args, work, num_blocks, stream);
}

}  // namespace ridge::kernels::cuda
