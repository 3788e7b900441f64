// Finds the added and special tokens in a text.
//
// Immutable after the last Add: any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

class AddedTokens {
 public:
  // Of two with the same text the first one stays. Requires a text that is not empty and outlives this.
  void Add(absl::string_view text, TokenId id, bool is_special);

  bool empty() const { return tokens_.empty(); }

  struct Match {
    size_t begin;
    size_t end;
    TokenId id;
  };
  // The first token at or after `from`, the longest of those that begin there; false where there is none.
  // Special tokens count only `with_special`. A look at a position costs one hash for each size that tokens
  // with its first two bytes have, however many there are.
  bool Find(absl::string_view text, size_t from, bool with_special, Match* match) const;

  // -1 where there is none.
  TokenId FindSpecial(absl::string_view text) const;

 private:
  struct Token {
    TokenId id;
    bool is_special;
  };
  // Tokens that begin with the same two bytes (with the same byte, for those of one byte).
  struct Group {
    int second;                 // -1: there is none
    std::vector<size_t> sizes;  // the longest first
  };

  absl::flat_hash_map<absl::string_view, Token> tokens_;
  std::vector<Group> groups_[256];  // by first byte
};

}  // namespace ridge::worker
