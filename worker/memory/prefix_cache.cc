#include "worker/memory/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/hash/hash.h"
#include "common/check.h"
#include "common/hash.h"

namespace ridge::worker {
namespace {

// Blocks that are asked of memory together.
constexpr size_t kRun = 32;

uint64_t Fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Of a node's continuation with kBlockTokens tokens, two at a time. No token makes a factor of a product 0:
// their upper bits are. Of a chain's beginning the salt counts too. Without the secret nobody can choose
// tokens whose hashes end alike, which would make look-ups long.
uint64_t HashOf(uint64_t secret, uint64_t parent, const std::string& salt, const TokenId* tokens) {
  static_assert(kBlockTokens == 16 && sizeof(TokenId) == 4);
  constexpr uint64_t kKeys[] = {0xA0761D6478BD642Fu, 0xE7037ED1A0B428DBu, 0x8EBC6AF09C88C6E3u,
                                0xD6E8FEB86659FD93u};
  const uint64_t seed = Fold((parent == 0 ? absl::HashOf(salt) : parent) ^ secret, 0xBF58476D1CE4E5B9u);
  uint64_t words[8];
  std::memcpy(words, tokens, sizeof(words));
  uint64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += Fold(words[2 * i] ^ kKeys[i], words[2 * i + 1] ^ seed);
  return Fold(sum ^ seed, 0x94D049BB133111EBu);
}

}  // namespace

PrefixCache::PrefixCache(BlockPool* pool)
    : pool_(pool),
      secret_(RandomUint64()),
      index_(std::bit_ceil(2 * static_cast<size_t>(pool->num_blocks()))),
      nodes_(pool->num_blocks()),
      salts_(pool->num_blocks()) {
  pool->OnEviction([this](absl::Span<const BlockId> blocks) { Forget(blocks); });
}

PrefixCache::Match PrefixCache::Find(const std::string& salt, absl::Span<const TokenId> tokens) {
  Match match;
  match.node.salt = salt;
  for (size_t begin = 0; begin + kBlockTokens <= tokens.size(); begin += kBlockTokens) {
    const TokenId* next = tokens.data() + begin;
    const BlockId block = Lookup(match.node, next);
    if (block < 0) break;
    pool_->AddReader(block);
    match.blocks.push_back(block);
    match.node = {nodes_[block].id, {}, block};
  }
  return match;
}

ChainNode PrefixCache::Publish(const ChainNode& parent, absl::Span<const TokenId> tokens,
                               absl::Span<const BlockId> blocks) {
  RIDGE_CHECK(tokens.size() == blocks.size() * kBlockTokens);
  RIDGE_CHECK(IsReachable(parent));
  ChainNode node = parent;
  for (size_t i = 0; i < blocks.size(); ++i) {
    // What is written of them, which nobody may have looked at for long, is asked for together.
    for (size_t next = i; i % kRun == 0 && next < std::min(i + kRun, blocks.size()); ++next) {
      Prefetch(blocks[next]);
    }
    const TokenId* block_tokens = tokens.data() + i * kBlockTokens;
    BlockId block = Lookup(node, block_tokens);
    if (block < 0) Insert(node, block_tokens, block = blocks[i]);
    node = {nodes_[block].id, {}, block};
  }
  return node;
}

void PrefixCache::Prefetch(BlockId block) const {
  __builtin_prefetch(&nodes_[block]);
  __builtin_prefetch(&nodes_[block].tokens[kBlockTokens - 1]);
  pool_->Prefetch(block);
}

BlockId PrefixCache::Lookup(const ChainNode& parent, const TokenId* tokens) const {
  const auto has_tokens = [&](BlockId block) {
    return std::equal(nodes_[block].tokens.begin(), nodes_[block].tokens.end(), tokens);
  };
  if (parent.id != 0) {
    const Node& node = nodes_[parent.block];
    if (node.child >= 0 && has_tokens(node.child)) return node.child;
    if (node.indexed_child < 0) return -1;
  }
  const uint64_t hash = HashOf(secret_, parent.id, parent.salt, tokens);
  for (size_t place = PlaceOf(hash); index_[place].block >= 0; place = After(place)) {
    if (index_[place].tag != static_cast<uint32_t>(hash)) continue;
    const BlockId block = index_[place].block;
    if (nodes_[block].hash == hash && nodes_[block].parent == parent.id && has_tokens(block) &&
        (parent.id != 0 || salts_[block] == parent.salt)) {
      return block;
    }
  }
  return -1;
}

void PrefixCache::Insert(const ChainNode& parent, const TokenId* tokens, BlockId block) {
  Node& node = nodes_[block];
  RIDGE_CHECK(node.id == 0);
  node.id = next_id_++;
  node.parent = parent.id;
  node.parent_block = parent.block;
  node.child = node.indexed_child = -1;
  std::copy_n(tokens, kBlockTokens, node.tokens.begin());
  node.is_indexed = parent.id == 0 || nodes_[parent.block].child >= 0;
  if (node.is_indexed) {
    if (parent.id == 0) salts_[block] = parent.salt;
    node.hash = HashOf(secret_, parent.id, parent.salt, tokens);
    AddToIndex(block);
  }
  if (parent.id != 0) Link(block);
  pool_->Keep(block);
  ++cached_blocks_;
}

void PrefixCache::Link(BlockId block) {
  Node& node = nodes_[block];
  Node& parent = nodes_[node.parent_block];
  if (!node.is_indexed) {
    parent.child = block;
    return;
  }
  node.next = std::exchange(parent.indexed_child, block);
  node.previous = -1;
  if (node.next >= 0) nodes_[node.next].previous = block;
}

void PrefixCache::Unlink(BlockId block) {
  const Node& node = nodes_[block];
  Node& parent = nodes_[node.parent_block];
  if (!node.is_indexed) {
    parent.child = -1;
    return;
  }
  (node.previous >= 0 ? nodes_[node.previous].next : parent.indexed_child) = node.next;
  if (node.next >= 0) nodes_[node.next].previous = node.previous;
}

void PrefixCache::EraseBranch(BlockId block) {
  if (nodes_[block].parent != 0) Unlink(block);
  const size_t begin = branch_.size();
  branch_.push_back(block);
  for (size_t i = begin; i < branch_.size(); ++i) {
    Node& node = nodes_[branch_[i]];
    if (node.is_indexed) RemoveFromIndex(branch_[i]);
    node.id = 0;
    if (node.child >= 0) branch_.push_back(node.child);
    for (BlockId child = node.indexed_child; child >= 0; child = nodes_[child].next) branch_.push_back(child);
  }
}

void PrefixCache::AddToIndex(BlockId block) {
  const uint64_t hash = nodes_[block].hash;
  size_t place = PlaceOf(hash);
  while (index_[place].block >= 0) place = After(place);
  index_[place] = {static_cast<uint32_t>(hash), block};
}

void PrefixCache::RemoveFromIndex(BlockId block) {
  size_t place = PlaceOf(nodes_[block].hash);
  while (index_[place].block != block) place = After(place);
  // What stands behind it moves up, unless it would come before the end of its hash.
  for (size_t next = After(place); index_[next].block >= 0; next = After(next)) {
    const size_t way = (next - PlaceOf(index_[next].tag)) & (index_.size() - 1);
    if (way < ((next - place) & (index_.size() - 1))) continue;
    index_[place] = index_[next];
    place = next;
  }
  index_[place].block = -1;
}

void PrefixCache::Forget(absl::Span<const BlockId> blocks) {
  // The oldest blocks have left the caches: what is read of them is asked for together.
  for (BlockId block : blocks) __builtin_prefetch(&nodes_[block]);
  for (BlockId block : blocks) {
    if (nodes_[block].parent != 0) __builtin_prefetch(&nodes_[nodes_[block].parent_block]);
  }
  branch_.clear();
  for (BlockId block : blocks) {
    if (nodes_[block].id != 0) EraseBranch(block);
  }
  cached_blocks_ -= static_cast<int64_t>(branch_.size());
  evictions_ += static_cast<int64_t>(branch_.size());
  // Of a sequence's blocks the tail is evicted first: nothing continues it. Only where another's blocks do,
  // these are given up too, the lowest first.
  if (branch_.size() == blocks.size()) return;
  std::sort(branch_.begin(), branch_.end());
  for (BlockId block : branch_) pool_->Discard(block);
}

}  // namespace ridge::worker
