// Finds stop strings in a text that arrives in pieces.
//
// Text is held back only while it may be the beginning of a stop string. The match that ends first wins; of
// those that end together, the one that starts first. Linear in the text.
// One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/text/string_automaton.h"

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
  const bool include_stop_;
  const StringAutomaton automaton_;
  int32_t state_ = 0;
  std::string held_;  // the bytes that state_ stands for
};

}  // namespace ridge::worker
