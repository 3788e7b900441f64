// Byte pair encoding of one word: its bytes, merged by rank.
//
// Short words are merged by search, long ones with a heap: n log n in the length of a word, whatever it
// holds. Words that were seen before come from a cache, which holds a bounded number of them and changes
// nothing but the time.
//
// Immutable after construction: any thread. What changes is in a BpeScratch, one a thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

// Working memory and the cache of words, about 1 MiB. Belongs to one Bpe for life. One thread at a time.
class BpeScratch {
 public:
  BpeScratch();

  // Before each text: whether it may become special tokens.
  void Begin(bool with_special) { with_special_ = with_special; }

  // Gives back what a very long word needed.
  void Shrink();

 private:
  friend class Bpe;

  static constexpr size_t kCachedWords = 16384;
  static constexpr size_t kCachedBytes = 30;  // words up to this size are cached
  static constexpr size_t kCachedIds = 8;     // that have up to so many tokens

  struct CachedWord {  // 64 bytes: one line of a processor's cache
    uint8_t size = 0;  // 0: empty
    uint8_t count = 0;
    char bytes[kCachedBytes];
    TokenId ids[kCachedIds];
  };
  // A linked list over an array; a merge keeps the left symbol and unlinks the right one.
  struct Symbol {
    TokenId id;
    int32_t previous;
    int32_t next;
  };

  std::vector<CachedWord> cache_;  // by the word's hash
  bool with_special_ = false;
  bool lacks_bytes_ = false;  // the vocabulary, of the word at hand
  std::vector<TokenId> ids_;
  std::vector<int32_t> ranks_;
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> heap_;
};

// Finds the tokens that a merge is about, by their bytes, for whoever reads a file. `tokens` outlives it.
class MergeResolver {
 public:
  explicit MergeResolver(const std::vector<TokenizerSpec::Token>& tokens);

  // A token that others have the bytes of too; -1 where there is none.
  TokenId duplicate() const { return duplicate_; }

  // False where one of the three is no token.
  bool Resolve(absl::string_view left, absl::string_view right, TokenizerSpec::Merge* merge);

 private:
  absl::flat_hash_map<absl::string_view, TokenId> ids_;
  TokenId duplicate_ = -1;
  std::string both_;
};

class Bpe {
 public:
  Bpe() = default;
  // `spec` outlives it, but for its merges.
  explicit Bpe(const TokenizerSpec& spec);

  // Appends the word's tokens. A byte that the vocabulary lacks becomes the spec's unknown token, or is
  // dropped where there is none; and where that one is special and the text may not become special tokens.
  // Requires a word that is not empty.
  void Encode(absl::string_view word, BpeScratch& scratch, std::vector<TokenId>* ids) const;

 private:
  static constexpr int32_t kNoMerge = INT32_MAX;

  void Merge(absl::string_view word, BpeScratch& scratch, std::vector<TokenId>* ids) const;
  // The symbols that the merges begin with, into scratch.ids_.
  void TakeBytes(absl::string_view word, BpeScratch& scratch) const;
  // Both take the symbols in scratch.ids_; the result is there, or appended.
  void MergeBySearch(BpeScratch& scratch) const;
  void MergeByHeap(BpeScratch& scratch, std::vector<TokenId>* ids) const;
  // kNoMerge where these do not merge.
  int32_t RankOf(TokenId left, TokenId right) const;

  std::array<TokenId, 256> byte_ids_;  // -1: not in the vocabulary
  TokenId unknown_id_ = -1;            // in place of those
  bool fuse_unknown_ = false;
  bool unknown_is_special_ = false;
  absl::flat_hash_map<absl::string_view, TokenId> whole_ids_;  // by bytes; filled for ignore_merges only
  absl::flat_hash_map<uint64_t, int32_t> ranks_;               // by the ids of both parts
  std::vector<TokenId> merged_;                                // by rank
};

}  // namespace ridge::worker
