// Finds stop strings in a text that arrives in pieces.
//
// Text is held back only while it may be the beginning of a stop string. The match that ends first wins; of
// those that end together, the one that starts first. Linear in the text (an automaton of Aho and Corasick).
// One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

class StopMatcher {
 public:
  // Stop strings are valid UTF-8 and not empty. With include_stop the matched string stays in the text.
  StopMatcher(const std::vector<std::string>& stops, bool include_stop);

  struct Result {
    std::string text;      // safe to deliver
    int32_t matched = -1;  // index of the stop string that ended the text; nothing may be pushed after it
  };
  Result Push(absl::string_view delta);
  // What is held back, where the text ends without a match.
  std::string Flush();

 private:
  struct Node {
    int32_t fail = 0;      // the longest proper suffix that begins a stop string
    int32_t depth = 0;     // bytes
    int32_t matched = -1;  // the longest stop string that ends here
    int32_t matched_size = 0;
  };

  void Insert(absl::string_view stop, int32_t index);
  void LinkSuffixes(const std::vector<std::string>& stops);
  int32_t Child(int32_t node, char byte) const;
  int32_t Step(int32_t node, char byte) const;

  const bool include_stop_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<int64_t, int32_t> children_;  // by node and byte
  int32_t state_ = 0;
  std::string held_;  // the last nodes_[state_].depth bytes
};

}  // namespace ridge::worker
