// The text of one choice, token by token: detokenised, stop strings found. A function of the tokens alone.
//
// One thread at a time. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/text/detokenizer.h"
#include "worker/text/stop_matcher.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

struct TextOptions {
  std::vector<std::string> stops = {};
  bool include_stop = false;
  bool skip_special = true;
  int32_t min_tokens = 0;  // stop strings are not looked for in the text of that many tokens
};

class TextStream {
 public:
  TextStream(const Tokenizer* tokenizer, const TextOptions& options);

  struct Delta {
    std::string text;
    int32_t matched_stop = -1;  // the stop string that ended the text
  };
  // `is_last` delivers what is held back; `is_stop_token` leaves the token's own text out, unless stops are
  // included.
  Delta Push(TokenId id, bool is_last, bool is_stop_token);

 private:
  const Tokenizer* const tokenizer_;
  const bool skip_special_;
  const bool include_stop_;
  int32_t unmatched_tokens_;  // to come, in whose text no stop string is looked for
  IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
};

}  // namespace ridge::worker
