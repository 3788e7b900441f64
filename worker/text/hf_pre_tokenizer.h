// The parts of a tokenizer.json that say how a text is cut, and what is put around it.
#pragma once

#include <string>
#include <vector>

#include "worker/text/json_reader.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

struct HfPreTokenizer {
  std::vector<SplitStep> splits;
  bool is_byte_level = false;
};

// Reads the value that comes next; errors are the reader's.
HfPreTokenizer ReadHfPreTokenizer(JsonReader& reader);

struct HfPostProcessor {
  std::vector<std::string> prefix;  // texts of special tokens
  std::vector<std::string> suffix;
};

// The same. Of a template only the one for a single text counts.
HfPostProcessor ReadHfPostProcessor(JsonReader& reader);

}  // namespace ridge::worker
