// AttentionSplit's way from global to shared memory: its geometry, the walk over a block's items, and the
// ring through which a warp streams the K and V that it alone reads. Used by attention_split.cu.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tile.cuh"

namespace ridge::kernels::cuda::attention_split {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * kWarpThreads;
inline constexpr int kRows = kAttentionSplitRows;
inline constexpr int kChunk = kAttentionChunk;
inline constexpr int kTile = kAttentionTile;
inline constexpr int kTiles = kChunk / kTile;
inline constexpr int kWarpKeys = kChunk / kWarps;  // whose scores a warp computes
inline constexpr int kWarpsPerTile = kTile / kWarpKeys;
inline constexpr int kUnitKeys = 16;  // of a K unit: one KV block
inline constexpr int kKeyUnits = kWarpKeys / kUnitKeys;
inline constexpr int kValueUnits = kTiles;  // a V unit has the keys of a tile
inline constexpr int kUnits = kKeyUnits + kValueUnits;
inline constexpr int kTilePages = kTile / kKvBlockTokens;
inline constexpr int kChunkPages = kChunk / kKvBlockTokens;
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

}  // namespace ridge::kernels::cuda::attention_split
