#include "worker/text/bad_words.h"

#include <algorithm>

namespace ridge::worker {

BadWords::BadWords(const Tokenizer* tokenizer, const TokenIndex* index, const std::vector<std::string>& words)
    : tokenizer_(tokenizer), automaton_(words), completing_(static_cast<size_t>(automaton_.num_states())) {
  for (const std::string& word : words) {
    const std::vector<TokenId> holding = index->Holding(word);
    always_.insert(always_.end(), holding.begin(), holding.end());
    int32_t state = 0;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      // Another word that is complete here was never let through.
      state = automaton_.Step(state, word[i]);
      const auto tokens = index->BeginningWith(absl::string_view(word).substr(i + 1));
      if (!tokens.empty()) completing_[static_cast<size_t>(state)].push_back(tokens);
    }
  }
  std::sort(always_.begin(), always_.end());
  always_.erase(std::unique(always_.begin(), always_.end()), always_.end());
}

int32_t BadWords::Advance(int32_t state, TokenId token) const {
  if (tokenizer_->IsSpecial(token)) return state;
  for (char byte : tokenizer_->TokenBytes(token)) state = automaton_.Step(state, byte);
  return state;
}

std::vector<TokenId> BadWords::CompletedBy(int32_t state) const {
  std::vector<TokenId> ids;
  for (; state != 0; state = automaton_.Shorter(state)) {
    for (const absl::Span<const TokenId> tokens : completing_[static_cast<size_t>(state)])
      ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  return ids;
}

std::vector<TokenId> BadWords::EverCompleting() const {
  std::vector<TokenId> ids;
  for (const std::vector<absl::Span<const TokenId>>& of_state : completing_) {
    for (const absl::Span<const TokenId> tokens : of_state)
      ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  return ids;
}

}  // namespace ridge::worker
