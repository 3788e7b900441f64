// Token bytes to text, as they come.
//
// What was delivered, joined, is the one-shot conversion of all bytes (U+FFFD for each maximal ill-formed
// part), and every delta is valid UTF-8: the beginning of a character is held back until its end arrives. One
// thread at a time.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ridge::worker {

class IncrementalDetokenizer {
 public:
  // The text that these bytes complete.
  std::string Push(absl::string_view bytes);
  // What is still held back, as U+FFFD.
  std::string Flush();

 private:
  std::string pending_;  // begins a character
};

}  // namespace ridge::worker
