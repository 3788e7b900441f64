#include "worker/text/string_automaton.h"

#include <algorithm>

namespace ridge::worker {
namespace {

int64_t ChildKey(int32_t state, char byte) {
  return int64_t{state} << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

StringAutomaton::StringAutomaton(const std::vector<std::string>& strings) {
  nodes_.emplace_back();
  for (size_t i = 0; i < strings.size(); ++i) Insert(strings[i], static_cast<int32_t>(i));
  LinkSuffixes(strings);
}

void StringAutomaton::Insert(absl::string_view string, int32_t index) {
  int32_t state = 0;
  for (char byte : string) {
    const auto [it, is_new] =
        children_.try_emplace(ChildKey(state, byte), static_cast<int32_t>(nodes_.size()));
    if (is_new) {
      nodes_.emplace_back();
      nodes_.back().depth = nodes_[state].depth + 1;
    }
    state = it->second;
  }
  if (nodes_[state].matched < 0) {
    nodes_[state].matched = index;
    nodes_[state].matched_size = static_cast<int32_t>(string.size());
  }
}

void StringAutomaton::LinkSuffixes(const std::vector<std::string>& strings) {
  // By depth, so that shorter prefixes are linked before longer ones.
  size_t longest = 0;
  for (const std::string& string : strings) longest = std::max(longest, string.size());
  std::vector<int32_t> at(strings.size(), 0);  // where each string stands
  for (size_t depth = 0; depth < longest; ++depth) {
    for (size_t i = 0; i < strings.size(); ++i) {
      if (depth >= strings[i].size()) continue;
      const int32_t parent = at[i];
      const int32_t state = at[i] = Child(parent, strings[i][depth]);
      if (parent == 0) continue;
      nodes_[state].fail = Step(nodes_[parent].fail, strings[i][depth]);
      const Node& suffix = nodes_[nodes_[state].fail];
      if (nodes_[state].matched < 0) {
        nodes_[state].matched = suffix.matched;
        nodes_[state].matched_size = suffix.matched_size;
      }
    }
  }
}

int32_t StringAutomaton::Child(int32_t state, char byte) const {
  const auto it = children_.find(ChildKey(state, byte));
  return it == children_.end() ? -1 : it->second;
}

int32_t StringAutomaton::Step(int32_t state, char byte) const {
  for (;;) {
    const int32_t child = Child(state, byte);
    if (child >= 0) return child;
    if (state == 0) return 0;
    state = nodes_[state].fail;
  }
}

}  // namespace ridge::worker
