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

PrefixCache::Published PrefixCache::Publish(const ChainNode& parent, absl::Span<const TokenId> tokens,
                                            absl::Span<const BlockId> blocks) {
  RIDGE_CHECK(tokens.size() == blocks.size() * kBlockTokens);
  RIDGE_CHECK(parent.id == 0 || nodes_[parent.block].id == parent.id);
  Published published{parent};
  for (size_t i = 0; i < blocks.size(); ++i) {
    // What is written of them, which nobody may have looked at for long, is asked for together.
    for (size_t next = i; i % kRun == 0 && next < std::min(i + kRun, blocks.size()); ++next) {
      Prefetch(blocks[next]);
    }
    const TokenId* block_tokens = tokens.data() + i * kBlockTokens;
    BlockId block = Lookup(published.node, block_tokens);
    if (block < 0) Insert(published.node, block_tokens, block = blocks[i]);
    published.borrows |= block != blocks[i];
    published.node = {nodes_[block].id, {}, block};
  }
  return published;
}

void PrefixCache::Prefetch(BlockId block) const {
  __builtin_prefetch(&nodes_[block]);
  __builtin_prefetch(&nodes_[block].tokens[kBlockTokens - 1]);
  pool_->Prefetch(block);
}

bool PrefixCache::IsReachable(const ChainNode& node) const {
  uint64_t id = node.id;
  for (BlockId block = node.block; id != 0; block = nodes_[block].parent_block) {
    if (block < 0 || nodes_[block].id != id) return false;
    id = nodes_[block].parent;
  }
  return true;
}

BlockId PrefixCache::Lookup(const ChainNode& parent, const TokenId* tokens) const {
  const auto has_tokens = [&](BlockId block) {
    return std::equal(nodes_[block].tokens.begin(), nodes_[block].tokens.end(), tokens);
  };
  if (parent.id != 0) {
    const Node& node = nodes_[parent.block];
    if (node.child >= 0 && has_tokens(node.child)) return node.child;
    if (node.indexed_children == 0) return -1;
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
  // It may be known as the continuation of a chain that is gone.
  if (node.id != 0) Erase(block);
  node.id = next_id_++;
  node.parent = parent.id;
  node.parent_block = parent.block;
  node.child = -1;
  node.indexed_children = 0;
  std::copy_n(tokens, kBlockTokens, node.tokens.begin());
  node.is_indexed = parent.id == 0 || nodes_[parent.block].child >= 0;
  if (node.is_indexed) {
    if (parent.id == 0) salts_[block] = parent.salt;
    if (parent.id != 0) ++nodes_[parent.block].indexed_children;
    node.hash = HashOf(secret_, parent.id, parent.salt, tokens);
    AddToIndex(block);
  } else {
    nodes_[parent.block].child = block;
  }
  pool_->Keep(block);
  ++cached_blocks_;
}

void PrefixCache::Erase(BlockId block) {
  Node& node = nodes_[block];
  if (node.is_indexed) RemoveFromIndex(block);
  if (node.parent != 0 && nodes_[node.parent_block].id == node.parent) {
    Node& parent = nodes_[node.parent_block];
    if (node.is_indexed) {
      --parent.indexed_children;
    } else {
      parent.child = -1;
    }
  }
  node.id = 0;
  --cached_blocks_;
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
  for (BlockId block : blocks) Erase(block);
  evictions_ += static_cast<int64_t>(blocks.size());
}

}  // namespace ridge::worker
