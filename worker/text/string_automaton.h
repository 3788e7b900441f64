// The automaton of Aho and Corasick: finds any of several strings in a text that arrives byte by byte.
//
// Immutable once built; any thread. A state stands for the longest suffix of the text so far that begins a
// string; 0 is the empty one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

class StringAutomaton {
 public:
  // Strings are not empty.
  explicit StringAutomaton(const std::vector<std::string>& strings);

  bool empty() const { return nodes_.size() == 1; }
  int32_t num_states() const { return static_cast<int32_t>(nodes_.size()); }

  // The state after one byte more.
  int32_t Step(int32_t state, char byte) const;
  // The longest string that ends here, by its index; of equal ones the first. -1: none does.
  int32_t matched(int32_t state) const { return node(state).matched; }
  int32_t matched_size(int32_t state) const { return node(state).matched_size; }
  // Bytes of the suffix that the state stands for.
  int32_t depth(int32_t state) const { return node(state).depth; }
  // The state of the longest proper suffix of it that begins a string.
  int32_t Shorter(int32_t state) const { return node(state).fail; }

 private:
  struct Node {
    int32_t fail = 0;
    int32_t depth = 0;
    int32_t matched = -1;
    int32_t matched_size = 0;
  };

  const Node& node(int32_t state) const { return nodes_[static_cast<size_t>(state)]; }
  void Insert(absl::string_view string, int32_t index);
  void LinkSuffixes(const std::vector<std::string>& strings);
  int32_t Child(int32_t state, char byte) const;

  std::vector<Node> nodes_;
  absl::flat_hash_map<int64_t, int32_t> children_;  // by state and byte
};

}  // namespace ridge::worker
