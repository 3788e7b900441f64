// A vocabulary in the order of its bytes: which tokens begin with a text, and which hold it.
//
// Immutable; any thread. The tokenizer outlives it. Special tokens are not in it.
#pragma once

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

class TokenIndex {
 public:
  explicit TokenIndex(const Tokenizer* tokenizer);

  absl::Span<const TokenId> BeginningWith(absl::string_view text) const;
  // Linear in the vocabulary.
  std::vector<TokenId> Holding(absl::string_view text) const;

 private:
  const Tokenizer* const tokenizer_;
  std::vector<TokenId> sorted_;
};

}  // namespace ridge::worker
