// Attention over paged KV, one tile of at most 16 virtual rows and any range of key chunks a block: decode
// rows, short chunks of prefills, head dims that AttentionPrefill does not know. The formula is in
// attention.h.
//
// Geometry: 4 warps a block; a block takes one KV head of the items of a list. Of a chunk of 256 keys, warp
// w computes the scores of keys 64 w .. 64 w + 63; maxima and P meet in shared memory; then warp w computes
// columns w d / 4 .. of O over all keys of the chunk, in ascending order. Each warp streams what it alone
// reads (its keys' K, its columns' V) through a ring of its own, which runs ahead into the next chunks and
// items, so that a chunk costs two barriers and waits for no other warp's loads. Shared memory: 4 rings of
// kStages units of 32 d bytes, Q, P (8 KiB), maxima: 93 KiB for d = 128. Alignment: q, out 4 bytes, pool 16
// bytes. Bytes: K and V of the items' keys once each KV head; shared tiles also write and read 64 d a chunk
// and row. FLOPs: 4 d a key, row and query head, on tiles padded to 16 rows. Reference: reference::Attention,
// whose dot products add in another order (1 fp16 ulp).
#include <algorithm>

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
  static constexpr int kMergeLoads = kExact ? 8 : 4;  // as registers allow
  static constexpr int kSharedBytes = kWarps * kStages * kUnitBytes;
};

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

// A chunk that a block works on, as the loader needs it.
struct ChunkSource {
  const int32_t* table;  // the sequence's block table
  int chunk;
  int chunk_end;  // of the item
  int num_pages;
  int first_position;  // of the run: keys before it were written by earlier steps
};

// The KV head and the first item of this block; -1: there is none.
struct BlockWork {
  int kv_head;
  int first_item;
};

__device__ inline BlockWork MakeBlockWork(const AttentionArgs& args, const AttentionWork& work) {
  const unsigned kv_heads = args.num_kv_heads, item = blockIdx.x / kv_heads;
  return {static_cast<int>(blockIdx.x % kv_heads),
          item < static_cast<unsigned>(*work.num_items) ? static_cast<int>(item) : -1};
}

// Walks the chunks of the block's items in order.
class ChunkWalk {
 public:
  __device__ ChunkWalk(const AttentionArgs& args, const AttentionItem* items, const BlockWork& work,
                       unsigned lane_offset)
      : args_(args),
        items_(items),
        next_(work.first_item),
        keys_(reinterpret_cast<const char*>(args.kv.pool + args.kv.key_offset +
                                            static_cast<int64_t>(work.kv_head) * kKvBlockTokens *
                                                args.head_dim) +
              lane_offset) {}

  // Where this lane's first piece of a K unit would be, if its block were block 0.
  __device__ const char* keys() const { return keys_; }

  // The next item's first chunk; false where there is no item.
  __device__ bool TakeItem(ChunkSource* source) {
    if (next_ < 0) return false;
    const AttentionItem& item = items_[next_];
    *source = {args_.block_tables + static_cast<int64_t>(item.table_row) * args_.table_stride,
               item.chunk_begin, item.chunk_end, (item.num_read + kKvBlockTokens - 1) / kKvBlockTokens,
               item.first_position};
    next_ = item.next;
    return true;
  }

  // False after the last chunk of all.
  __device__ bool Advance(ChunkSource* source) {
    return ++source->chunk < source->chunk_end || TakeItem(source);
  }

 private:
  const AttentionArgs& args_;
  const AttentionItem* items_;
  int next_;  // item
  const char* keys_;
};

// A warp's ring of units: per chunk its K units, then its V units. What of a copy's addresses is the same for
// all units is computed once: a warp's instructions are what a chunk takes longest for.
template <int kDim>
class Ring {
  using S = Shape<kDim>;

 public:
  __device__ Ring(const AttentionArgs& args, const AttentionItem* items, const BlockWork& work,
                  uint32_t shared, unsigned warp, unsigned lane)
      : args_(args),
        shared_(shared),
        warp_(warp),
        lane_(lane),
        row_bytes_(S::kExact ? 2 * kDim : 2 * static_cast<unsigned>(args.head_dim)),
        key_piece_(lane % S::kKeyPieces),
        value_piece_(warp * S::kValuePieces + lane % S::kValuePieces),
        key_lane_(SwizzledOffset<S::kKeyPieces>(lane / S::kKeyPieces, key_piece_)),
        value_lane_(SwizzledOffset<S::kValuePieces>(lane / S::kValuePieces, lane % S::kValuePieces)),
        block_bytes_(static_cast<unsigned>(args.kv.block_stride * 2)),
        values_after_keys_(2 * static_cast<int>(args.kv.value_offset - args.kv.key_offset) +
                           static_cast<int>(GlobalOffset<S::kValuePieces>(value_piece_)) -
                           static_cast<int>(GlobalOffset<S::kKeyPieces>(key_piece_))),
        walk_(args, items, work, GlobalOffset<S::kKeyPieces>(key_piece_)) {
    more_ = walk_.TakeItem(&current_);
    if (more_) {
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
        IssueKeys(to + key_lane_);
      } else {
        IssueValues(to + value_lane_);
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

  // In a page's rows, of this lane's piece of turn 0.
  template <unsigned kPieces>
  __device__ unsigned GlobalOffset(unsigned piece) const {
    return lane_ / kPieces * row_bytes_ + piece * kPieceBytes;
  }

  // Of this lane's first piece of a page's K.
  __device__ const char* PageStart(unsigned page_in_chunk) const {
    const auto block =
        static_cast<unsigned>(__shfl_sync(0xFFFFFFFFu, page_, static_cast<int>(page_in_chunk)));
    return walk_.keys() + static_cast<uint64_t>(block) * block_bytes_;
  }

  __device__ void IssueKeys(uint32_t to) {
    const unsigned page = warp_ * kKeyUnits + static_cast<unsigned>(unit_);
    if (current_.chunk * kChunkPages + static_cast<int>(page) >= current_.num_pages)
      return;  // masked, whatever
    const char* from = PageStart(page);
    if (!S::kExact && key_piece_ * kPieceBytes >= row_bytes_) return;
    constexpr unsigned kTurnRows = kWarpThreads / S::kKeyPieces;
#pragma unroll
    for (unsigned turn = 0; turn < S::kCopies; ++turn)
      CopyAsync16(SwizzledTurn<S::kKeyPieces>(to, turn), from + turn * kTurnRows * row_bytes_);
  }

  // Keys beyond the last page become zeros: their P is 0, and 0 times what the ring held might not be.
  __device__ void IssueValues(uint32_t to) {
    const unsigned first_page = static_cast<unsigned>(unit_ - kKeyUnits) * kTilePages;
    const int pages = current_.num_pages - current_.chunk * kChunkPages - static_cast<int>(first_page);
    if (pages <= 0) return;                                    // the tile is left out
    constexpr unsigned kPageCopies = S::kCopies / kTilePages;  // a lane and page
    constexpr unsigned kTurnRows = kWarpThreads / S::kValuePieces;
#pragma unroll
    for (unsigned page = 0; page < kTilePages; ++page) {
      const char* from = PageStart(first_page + page) + values_after_keys_;
      if (!S::kExact && value_piece_ * kPieceBytes >= row_bytes_) continue;
#pragma unroll
      for (unsigned turn = 0; turn < kPageCopies; ++turn) {
        CopyAsync16(SwizzledTurn<S::kValuePieces>(to, page * kPageCopies + turn),
                    from + turn * kTurnRows * row_bytes_, static_cast<int>(page) < pages);
      }
    }
  }

  const AttentionArgs& args_;
  const uint32_t shared_;
  const unsigned warp_, lane_;
  const unsigned row_bytes_;
  const unsigned key_piece_, value_piece_;  // of a row, that this lane copies
  const uint32_t key_lane_, value_lane_;    // where its piece of turn 0 stands in a unit
  const unsigned block_bytes_;
  const int values_after_keys_;  // from its first piece of a page's K to that of V
  ChunkWalk walk_;
  ChunkSource current_, next_;
  int32_t page_ = 0, next_page_ = 0;
  bool more_, has_next_ = false;
  int unit_ = 0;   // of the current chunk, to be issued next
  int write_ = 0;  // its stage
  int read_ = 0;
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
      float max = -INFINITY;
#pragma unroll
      for (int i = 0; i < kWarpKeys / 8; ++i)
        max = fmaxf(max, fmaxf(scores[i].x[2 * row], scores[i].x[2 * row + 1]));
      max = RowMax(max);
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
