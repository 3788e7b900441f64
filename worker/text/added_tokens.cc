#include "worker/text/added_tokens.h"

#include <algorithm>
#include <functional>

namespace ridge::worker {

void AddedTokens::Add(absl::string_view text, TokenId id, bool is_special) {
  if (!tokens_.emplace(text, Token{id, is_special}).second) return;
  std::vector<Group>& groups = groups_[static_cast<uint8_t>(text[0])];
  const int second = text.size() > 1 ? static_cast<uint8_t>(text[1]) : -1;
  auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.second == second; });
  // The group of single bytes comes last: it has the shortest token.
  if (group == groups.end())
    group = groups.insert(second < 0 ? groups.end() : groups.begin(), Group{second, {}});
  std::vector<size_t>& sizes = group->sizes;
  if (std::find(sizes.begin(), sizes.end(), text.size()) != sizes.end()) return;
  sizes.insert(std::upper_bound(sizes.begin(), sizes.end(), text.size(), std::greater<>()), text.size());
}

bool AddedTokens::Find(absl::string_view text, size_t from, bool with_special, Match* match) const {
  if (tokens_.empty()) return false;
  for (size_t begin = from; begin < text.size(); ++begin) {
    const int second = begin + 1 < text.size() ? static_cast<uint8_t>(text[begin + 1]) : -1;
    for (const Group& group : groups_[static_cast<uint8_t>(text[begin])]) {
      if (group.second >= 0 && group.second != second) continue;
      for (const size_t size : group.sizes) {
        if (size > text.size() - begin) continue;
        const auto token = tokens_.find(text.substr(begin, size));
        if (token == tokens_.end() || (token->second.is_special && !with_special)) continue;
        *match = {begin, begin + size, token->second.id};
        return true;
      }
    }
  }
  return false;
}

TokenId AddedTokens::FindSpecial(absl::string_view text) const {
  const auto token = tokens_.find(text);
  return token != tokens_.end() && token->second.is_special ? token->second.id : -1;
}

}  // namespace ridge::worker
