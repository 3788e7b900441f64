// How one sequence's tokens are chosen; the device side of a request's sampling fields, every default applied.
// Plain data, copied freely.
#pragma once

#include <cstdint>

namespace ridge::worker {

using TokenId = int32_t;

struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  float top_p = 1.0f;        // (0, 1]; 1 is off
  int32_t top_k = 0;         // 0 is off
  float min_p = 0.0f;        // [0, 1]; 0 is off
  uint64_t seed = 0;
  uint32_t choice = 0;    // index of the choice, part of the draw's counter
  bool logprobs = false;  // report the log-probability of each chosen token
};

}  // namespace ridge::worker
