#include "worker/text/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace ridge::worker {
namespace {

// Up to so many symbols the search through all of them is faster than the heap.
constexpr size_t kMostForSearch = 96;
// Of a word, that the working memory keeps room for.
constexpr size_t kMostKeptSymbols = 1 << 16;

uint64_t PairKey(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeScratch::BpeScratch() : cache_(kCachedWords) {}

void BpeScratch::Shrink() {
  if (symbols_.capacity() > kMostKeptSymbols) symbols_ = {};
  if (heap_.capacity() > kMostKeptSymbols) heap_ = {};
  if (ids_.capacity() > kMostKeptSymbols) ids_ = {};
}

MergeResolver::MergeResolver(const std::vector<TokenizerSpec::Token>& tokens) {
  ids_.reserve(tokens.size());
  const auto add = [&](size_t id) { return ids_.emplace(tokens[id].bytes, static_cast<TokenId>(id)).second; };
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].kind == TokenKind::kNormal && !add(id)) duplicate_ = static_cast<TokenId>(id);
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    const TokenKind kind = tokens[id].kind;
    if (kind == TokenKind::kAdded || kind == TokenKind::kSpecial) add(id);
  }
}

bool MergeResolver::Resolve(absl::string_view left, absl::string_view right, TokenizerSpec::Merge* merge) {
  both_ = absl::StrCat(left, right);
  const auto left_id = ids_.find(left), right_id = ids_.find(right), merged_id = ids_.find(both_);
  if (left_id == ids_.end() || right_id == ids_.end() || merged_id == ids_.end()) return false;
  *merge = {left_id->second, right_id->second, merged_id->second};
  return true;
}

Bpe::Bpe(const TokenizerSpec& spec) {
  byte_ids_.fill(-1);
  unknown_id_ = spec.unknown_id;
  fuse_unknown_ = spec.fuse_unknown;
  unknown_is_special_ = unknown_id_ >= 0 && spec.tokens[unknown_id_].kind == TokenKind::kSpecial;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const TokenizerSpec::Token& token = spec.tokens[id];
    // Plain text must not become a control token.
    if (token.kind == TokenKind::kUnused || token.kind == TokenKind::kSpecial || token.bytes.empty())
      continue;
    if (token.bytes.size() == 1 && token.kind == TokenKind::kNormal) {
      byte_ids_[static_cast<uint8_t>(token.bytes[0])] = static_cast<TokenId>(id);
    }
    if (spec.ignore_merges) whole_ids_.emplace(token.bytes, static_cast<TokenId>(id));
  }
  ranks_.reserve(spec.merges.size());
  merged_.reserve(spec.merges.size());
  for (const TokenizerSpec::Merge& merge : spec.merges) {
    const auto rank = static_cast<int32_t>(merged_.size());
    merged_.push_back(merge.merged);
    if (spec.tokens[merge.merged].kind == TokenKind::kSpecial) continue;
    ranks_.emplace(PairKey(merge.left, merge.right), rank);
  }
}

int32_t Bpe::RankOf(TokenId left, TokenId right) const {
  const auto rank = ranks_.find(PairKey(left, right));
  return rank == ranks_.end() ? kNoMerge : rank->second;
}

void Bpe::Encode(absl::string_view word, BpeScratch& scratch, std::vector<TokenId>* ids) const {
  if (word.size() > BpeScratch::kCachedBytes) return Merge(word, scratch, ids);
  BpeScratch::CachedWord& cached = scratch.cache_[absl::HashOf(word) % BpeScratch::kCachedWords];
  if (cached.size == word.size() && std::memcmp(cached.bytes, word.data(), word.size()) == 0) {
    ids->insert(ids->end(), cached.ids, cached.ids + cached.count);
    return;
  }
  const size_t begin = ids->size();
  scratch.lacks_bytes_ = false;
  Merge(word, scratch, ids);
  const size_t count = ids->size() - begin;
  if (count > BpeScratch::kCachedIds) return;
  if (scratch.lacks_bytes_ && unknown_is_special_) return;  // another text may get another answer
  cached.size = static_cast<uint8_t>(word.size());
  cached.count = static_cast<uint8_t>(count);
  std::memcpy(cached.bytes, word.data(), word.size());
  std::copy_n(ids->data() + begin, count, cached.ids);
}

void Bpe::TakeBytes(absl::string_view word, BpeScratch& scratch) const {
  const TokenId unknown = unknown_is_special_ && !scratch.with_special_ ? -1 : unknown_id_;
  scratch.ids_.clear();
  bool was_unknown = false;
  for (const char byte : word) {
    TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
    const bool is_unknown = id < 0;
    if (is_unknown) id = was_unknown && fuse_unknown_ ? -1 : unknown;
    scratch.lacks_bytes_ |= is_unknown;
    if (id >= 0) scratch.ids_.push_back(id);
    was_unknown = is_unknown;
  }
}

void Bpe::Merge(absl::string_view word, BpeScratch& scratch, std::vector<TokenId>* ids) const {
  if (!whole_ids_.empty()) {
    const auto whole = whole_ids_.find(word);
    if (whole != whole_ids_.end()) return ids->push_back(whole->second);
  }
  TakeBytes(word, scratch);
  if (scratch.ids_.size() > kMostForSearch) return MergeByHeap(scratch, ids);
  MergeBySearch(scratch);
  ids->insert(ids->end(), scratch.ids_.begin(), scratch.ids_.end());
}

void Bpe::MergeBySearch(BpeScratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids_;
  std::vector<int32_t>& ranks = scratch.ranks_;  // of each symbol with the next one
  ranks.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) ranks.push_back(RankOf(ids[i], ids[i + 1]));
  while (!ranks.empty()) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == kNoMerge) return;
    const auto at = lowest - ranks.begin();
    ids[at] = merged_[*lowest];
    ids.erase(ids.begin() + at + 1);
    ranks.erase(lowest);
    const auto left = static_cast<size_t>(at);
    if (left < ranks.size()) ranks[left] = RankOf(ids[left], ids[left + 1]);
    if (left > 0) ranks[left - 1] = RankOf(ids[left - 1], ids[left]);
  }
}

void Bpe::MergeByHeap(BpeScratch& scratch, std::vector<TokenId>* ids) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols_;
  symbols.clear();
  for (const TokenId id : scratch.ids_) {
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  symbols.back().next = -1;

  // Candidates, the lowest rank and then the leftmost first: rank and left symbol in one word. One is stale
  // where the pair that begins at its symbol has another rank by now.
  const auto rank_at = [&](int32_t left) {
    if (left < 0 || symbols[left].id < 0 || symbols[left].next < 0) return kNoMerge;
    return RankOf(symbols[left].id, symbols[symbols[left].next].id);
  };
  const auto key_of = [](int32_t rank, int32_t left) {
    return uint64_t{static_cast<uint32_t>(rank)} << 32 | static_cast<uint32_t>(left);
  };
  std::vector<uint64_t>& heap = scratch.heap_;
  heap.clear();
  for (int32_t i = 0; symbols[i].next >= 0; ++i) {
    if (const int32_t rank = rank_at(i); rank != kNoMerge) heap.push_back(key_of(rank, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto consider = [&](int32_t left) {
    const int32_t rank = rank_at(left);
    if (rank == kNoMerge) return;
    heap.push_back(key_of(rank, left));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t candidate = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(candidate & 0xFFFFFFFF);
    const int32_t rank = rank_at(at);
    if (rank == kNoMerge || key_of(rank, at) != candidate) continue;
    BpeScratch::Symbol& left = symbols[at];
    BpeScratch::Symbol& right = symbols[left.next];
    left.id = merged_[rank];
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = at;
    consider(left.previous);
    consider(at);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace ridge::worker
