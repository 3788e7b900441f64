#include "worker/text/token_index.h"

#include <algorithm>

namespace ridge::worker {

TokenIndex::TokenIndex(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {
  sorted_.reserve(static_cast<size_t>(tokenizer->vocab_size()));
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->IsSpecial(id) && !tokenizer->TokenBytes(id).empty()) sorted_.push_back(id);
  }
  std::sort(sorted_.begin(), sorted_.end(),
            [&](TokenId a, TokenId b) { return tokenizer->TokenBytes(a) < tokenizer->TokenBytes(b); });
}

absl::Span<const TokenId> TokenIndex::BeginningWith(absl::string_view text) const {
  const auto head = [&](TokenId id) { return tokenizer_->TokenBytes(id).substr(0, text.size()); };
  const auto begin =
      std::partition_point(sorted_.begin(), sorted_.end(), [&](TokenId id) { return head(id) < text; });
  const auto end = std::partition_point(begin, sorted_.end(), [&](TokenId id) { return head(id) == text; });
  return absl::MakeConstSpan(sorted_).subspan(static_cast<size_t>(begin - sorted_.begin()),
                                              static_cast<size_t>(end - begin));
}

std::vector<TokenId> TokenIndex::Holding(absl::string_view text) const {
  std::vector<TokenId> ids;
  for (TokenId id : sorted_) {
    if (tokenizer_->TokenBytes(id).find(text) != absl::string_view::npos) ids.push_back(id);
  }
  return ids;
}

}  // namespace ridge::worker
