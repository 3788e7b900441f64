// Which tokens would complete a word that must not be in the text, whatever tokens the word's bytes come in.
//
// A token completes a word by itself where its own bytes hold it, and after what was generated so far where
// they begin with the rest of a word whose beginning the text ends with. Special tokens add nothing to the
// text and complete nothing. Immutable; any thread. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/text/string_automaton.h"
#include "worker/text/token_index.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

class BadWords {
 public:
  // Words are valid UTF-8 and not empty. The index is that of the tokenizer and outlives this.
  BadWords(const Tokenizer* tokenizer, const TokenIndex* index, const std::vector<std::string>& words);

  // Tokens that hold a word, each once: never to be generated.
  const std::vector<TokenId>& always() const { return always_; }

  // What matters of the text so far; 0 at its beginning. The text after one token more:
  int32_t Advance(int32_t state, TokenId token) const;
  // Tokens that would complete a word next, besides always(). May name one twice.
  std::vector<TokenId> CompletedBy(int32_t state) const;
  // All that CompletedBy could ever name.
  std::vector<TokenId> EverCompleting() const;

 private:
  const Tokenizer* const tokenizer_;
  const StringAutomaton automaton_;
  std::vector<TokenId> always_;
  // By the state of a word's beginning: the tokens that begin with its rest.
  std::vector<std::vector<absl::Span<const TokenId>>> completing_;
};

}  // namespace ridge::worker
