#include "worker/decision/sequence_memory.h"

#include <array>
#include <utility>
#include <vector>

namespace ridge::worker {

SequenceMemory::SequenceMemory(MemoryPolicy policy, bool prefix_cache, int32_t slot_tokens, BlockPool* pool,
                               PrefixCache* cache)
    : policy_(policy), prefix_cache_(prefix_cache), slot_tokens_(slot_tokens), pool_(pool), cache_(cache) {}

bool SequenceMemory::Take(Sequence* sequence, bool to_limit, int32_t spared, int32_t padded_tokens) {
  const int32_t usable = pool_->available_blocks() - spared;
  if (sequence->id == refused_ && usable < refused_missing_) return false;
  const int32_t known = sequence->known_tokens();
  PrefixCache::Match match{{}, {0, sequence->spec.cache_salt}};
  // What is found is not computed, and so gives no log-probabilities.
  const bool looks_up = prefix_cache_ && !sequence->wants_scores();
  if (looks_up) {
    // The last known token is always computed: its row gives the next one.
    std::vector<TokenId> tokens(known - 1);
    for (int32_t i = 0; i < known - 1; ++i) tokens[i] = sequence->token(i);
    match = cache_->Find(sequence->spec.cache_salt, tokens);
  }
  const int32_t missing =
      WantedBlocks(*sequence, to_limit, padded_tokens) - static_cast<int32_t>(match.blocks.size());
  // Idle blocks that were found are not available any more.
  std::vector<BlockId> fresh;
  const bool taken =
      missing <= pool_->available_blocks() - spared &&
      (IsContiguous() ? pool_->AllocateRun(missing, &fresh) : (fresh = pool_->Allocate(missing), true));
  if (!taken) {
    pool_->Release(match.blocks);
    refused_ = sequence->id;
    refused_missing_ = missing;
    return false;
  }
  refused_ = 0;
  const int32_t cached = static_cast<int32_t>(match.blocks.size()) * kBlockTokens;
  sequence->blocks = std::move(match.blocks);
  sequence->published_blocks = static_cast<int32_t>(sequence->blocks.size());
  sequence->blocks.insert(sequence->blocks.end(), fresh.begin(), fresh.end());
  sequence->chain = std::move(match.node);
  sequence->prefill_tokens = known;
  sequence->planned_rows = sequence->collected_rows = cached;
  sequence->planned_tokens = static_cast<int32_t>(sequence->generated.size());
  if (sequence->preemptions == 0) sequence->cached_tokens = cached;
  if (looks_up) counters_.queries += known - 1;
  counters_.hits += cached;
  return true;
}

BlockId SequenceMemory::Extend(Sequence* sequence) {
  sequence->blocks.push_back(pool_->Allocate(1)[0]);
  return sequence->blocks.back();
}

void SequenceMemory::Publish(Sequence* sequence) {
  if (!prefix_cache_) return;
  for (; (sequence->published_blocks + 1) * kBlockTokens <= sequence->collected_rows;
       ++sequence->published_blocks) {
    std::array<TokenId, kBlockTokens> tokens;
    for (int32_t i = 0; i < kBlockTokens; ++i)
      tokens[i] = sequence->token(sequence->published_blocks * kBlockTokens + i);
    sequence->chain = cache_->Publish(sequence->chain, tokens, sequence->blocks[sequence->published_blocks]);
  }
}

int32_t SequenceMemory::WantedBlocks(const Sequence& sequence, bool to_limit, int32_t padded_tokens) const {
  const int32_t at_limit = BlocksAtLimit(sequence.prompt_tokens(), sequence.spec.max_tokens);
  switch (policy_) {
    case MemoryPolicy::kScratch:
    case MemoryPolicy::kOnDemand:
      return to_limit ? at_limit : BlocksForTokens(sequence.known_tokens());
    case MemoryPolicy::kContiguous:
    case MemoryPolicy::kReserved:
      return at_limit;
    case MemoryPolicy::kPadded:
      return BlocksForTokens(padded_tokens);
    case MemoryPolicy::kSlots:
      return BlocksForTokens(slot_tokens_);
  }
  return at_limit;
}

bool SequenceMemory::IsContiguous() const {
  return policy_ == MemoryPolicy::kContiguous || policy_ == MemoryPolicy::kPadded ||
         policy_ == MemoryPolicy::kSlots;
}

}  // namespace ridge::worker
