#include "worker/decision/sequence_memory.h"

#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace ridge::worker {

SequenceMemory::SequenceMemory(MemoryPolicy policy, bool prefix_cache, int32_t slot_tokens, BlockPool* pool,
                               PrefixCache* cache)
    : policy_(policy), prefix_cache_(prefix_cache), slot_tokens_(slot_tokens), pool_(pool), cache_(cache) {}

SequenceMemory::Beginning SequenceMemory::FindBeginning(const Sequence& sequence, const Sequence* lender) {
  Beginning beginning;
  beginning.node = {0, sequence.spec.cache_salt};
  if (lender != nullptr) {
    beginning.rows = sequence.prompt_tokens() - 1;
    beginning.blocks.assign(lender->blocks.begin(), lender->blocks.begin() + beginning.rows / kBlockTokens);
    for (BlockId block : beginning.blocks) pool_->AddReader(block);
  } else if (prefix_cache_ && !sequence.wants_scores()) {
    // What is found is not computed, and so gives no log-probabilities. The last known token is always
    // computed: its row gives the next one.
    std::vector<TokenId> joined;
    absl::Span<const TokenId> tokens = sequence.spec.prompt;
    if (!sequence.generated.empty()) {
      joined = sequence.spec.prompt;
      joined.insert(joined.end(), sequence.generated.begin(), sequence.generated.end());
      tokens = joined;
    }
    PrefixCache::Match match = cache_->Find(sequence.spec.cache_salt, tokens.first(tokens.size() - 1));
    beginning.rows = static_cast<int32_t>(match.blocks.size()) * kBlockTokens;
    beginning.blocks = std::move(match.blocks);
    beginning.node = std::move(match.node);
  }
  return beginning;
}

bool SequenceMemory::Take(Sequence* sequence, bool to_limit, int32_t spared, int32_t padded_tokens,
                          const Sequence* lender, std::vector<BlockCopy>* copies) {
  const int32_t usable = pool_->available_blocks() - spared;
  if (sequence->id == refused_ && usable < refused_missing_) return false;
  Beginning beginning = FindBeginning(*sequence, lender);
  const auto found = static_cast<int32_t>(beginning.blocks.size());
  const int32_t missing = WantedBlocks(*sequence, to_limit, padded_tokens) - found;
  // Idle blocks that were found are not available any more.
  std::vector<BlockId> fresh;
  const bool taken =
      missing <= pool_->available_blocks() - spared &&
      (IsContiguous() ? pool_->AllocateRun(missing, &fresh) : (fresh = pool_->Allocate(missing), true));
  if (!taken) {
    pool_->Release(beginning.blocks);
    refused_ = sequence->id;
    refused_missing_ = missing;
    return false;
  }
  refused_ = 0;
  if (lender != nullptr && beginning.rows > found * kBlockTokens)
    copies->push_back({lender->blocks[static_cast<size_t>(found)], fresh[0]});
  sequence->blocks = std::move(beginning.blocks);
  sequence->published_blocks = lender != nullptr ? 0 : found;
  sequence->blocks.insert(sequence->blocks.end(), fresh.begin(), fresh.end());
  sequence->chain = std::move(beginning.node);
  sequence->prefill_tokens = sequence->known_tokens();
  sequence->planned_rows = sequence->collected_rows = beginning.rows;
  sequence->planned_tokens = static_cast<int32_t>(sequence->generated.size());
  if (lender != nullptr) return true;
  if (sequence->preemptions == 0) sequence->cached_tokens = beginning.rows;
  if (prefix_cache_ && !sequence->wants_scores()) counters_.queries += sequence->known_tokens() - 1;
  counters_.hits += beginning.rows;
  return true;
}

BlockId SequenceMemory::Extend(Sequence* sequence) {
  sequence->blocks.push_back(pool_->Allocate(1)[0]);
  return sequence->blocks.back();
}

void SequenceMemory::Publish(Sequence* sequence) {
  const int32_t full_blocks = sequence->collected_rows / kBlockTokens;
  if (!prefix_cache_ || sequence->published_blocks >= full_blocks) return;
  // What the sequence itself holds is not evicted, but another's block that its chain goes through may be.
  if (!cache_->IsReachable(sequence->chain)) {
    sequence->published_blocks = 0;
    sequence->chain = {0, sequence->spec.cache_salt};
  }
  const auto new_blocks = absl::MakeConstSpan(sequence->blocks)
                              .subspan(static_cast<size_t>(sequence->published_blocks),
                                       static_cast<size_t>(full_blocks - sequence->published_blocks));
  sequence->CopyTokens(sequence->published_blocks * kBlockTokens, full_blocks * kBlockTokens, &tokens_);
  sequence->chain = cache_->Publish(sequence->chain, tokens_, new_blocks);
  sequence->published_blocks = full_blocks;
}

void SequenceMemory::PrefetchPublish(const Sequence& sequence, int32_t rows) const {
  const int32_t full_blocks = (sequence.collected_rows + rows) / kBlockTokens;
  if (prefix_cache_ && full_blocks == sequence.published_blocks + 1 &&
      full_blocks <= static_cast<int32_t>(sequence.blocks.size()))
    cache_->Prefetch(sequence.blocks[static_cast<size_t>(sequence.published_blocks)]);
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
