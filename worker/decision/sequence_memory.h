// The KV blocks of sequences: how many each takes and when, by the engine's memory policy, and what the
// prefix cache gives and learns.
//
// Threads: engine thread only. Ownership: pool and cache outlive it; a sequence's blocks are listed in the
// sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/decision/engine_policy.h"
#include "worker/decision/sequence.h"
#include "worker/memory/block_pool.h"
#include "worker/memory/prefix_cache.h"

namespace ridge::worker {

// Counts from the start of the process.
struct PrefixCounters {
  int64_t queries = 0;  // tokens looked up
  int64_t hits = 0;     // tokens found
};

class SequenceMemory {
 public:
  // `slot_tokens`: of one slot, where the policy is kSlots. `cache` is not used without prefix_cache.
  SequenceMemory(MemoryPolicy policy, bool prefix_cache, int32_t slot_tokens, BlockPool* pool,
                 PrefixCache* cache);

  // Blocks that a sequence holds at its limit. The last token's own K and V are never needed.
  static int32_t BlocksAtLimit(int64_t prompt_tokens, int64_t max_tokens) {
    return BlocksForTokens(prompt_tokens + max_tokens - 1);
  }

  // Gives a sequence that is to be admitted the blocks that it starts with, leaving `spared` ones alone, and
  // sets where it starts. False where there are not enough, which costs nothing until more have become
  // available. `to_limit`: all blocks up to its limit, whatever the policy. `padded_tokens`: of every
  // sequence of the batch, where the policy is kPadded. `lender`: null, or one whose K and V of the same
  // prompt are written by the time this step's rows are; the last block of them is copied as `copies` then
  // says.
  bool Take(Sequence* sequence, bool to_limit, int32_t spared, int32_t padded_tokens, const Sequence* lender,
            std::vector<BlockCopy>* copies);

  // Whether sequences can share blocks.
  bool Lends() const { return policy_ == MemoryPolicy::kReserved || policy_ == MemoryPolicy::kOnDemand; }

  // One more block for a running sequence. Requires that one is available.
  BlockId Extend(Sequence* sequence);

  // The sequence's full blocks among its collected rows become known to the prefix cache; those published
  // before too, where another's block of the chain that they continue was evicted meanwhile.
  void Publish(Sequence* sequence);

  // Asks memory for what Publish will need when so many rows more are collected.
  void PrefetchPublish(const Sequence& sequence, int32_t rows) const;

  int32_t available_blocks() const { return pool_->available_blocks(); }
  const PrefixCounters& counters() const { return counters_; }

 private:
  // What the prefix cache or the lender has of the sequence's beginning, with one reader more.
  struct Beginning {
    std::vector<BlockId> blocks;
    int32_t rows = 0;  // of these blocks, and of the lender's next one
    ChainNode node;    // after the blocks
  };
  Beginning FindBeginning(const Sequence& sequence, const Sequence* lender);
  int32_t WantedBlocks(const Sequence& sequence, bool to_limit, int32_t padded_tokens) const;
  bool IsContiguous() const;

  const MemoryPolicy policy_;
  const bool prefix_cache_;
  const int32_t slot_tokens_;
  BlockPool* const pool_;
  PrefixCache* const cache_;
  PrefixCounters counters_;
  std::vector<TokenId> tokens_;  // of the blocks that are published
  // The sequence that was refused last, and how many blocks it lacked then: it is not looked up again before
  // so many are there.
  SequenceId refused_ = 0;
  int32_t refused_missing_ = 0;
};

}  // namespace ridge::worker
