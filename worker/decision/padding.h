// What an engine that pads computes besides its sequences' rows: the rows that make prompts as long as the
// longest of those admitted with them, and the width of a static batch.
//
// Threads: engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/decision/sequence.h"

namespace ridge::worker {

class Padding {
 public:
  // A batch begins; so many tokens are known of its longest sequence, and each has memory for so many.
  void BeginBatch(int32_t known_tokens, int32_t batch_tokens) {
    width_ = known_tokens;
    batch_tokens_ = batch_tokens;
  }

  // Positions that each sequence of the batch has memory for.
  int32_t batch_tokens() const { return batch_tokens_; }

  // Positions that each row of the batch's next decode step reads. A sequence may take more steps than
  // tokens, where it waits for the ones before: the width ends with the memory.
  int32_t NextWidth() { return width_ = std::min(width_ + 1, batch_tokens_); }

  void AddPrompts(const std::vector<Sequence*>& admitted) {
    int32_t longest = 0;
    for (const Sequence* sequence : admitted) longest = std::max(longest, sequence->prefill_tokens);
    for (const Sequence* sequence : admitted) rows_left_ += longest - sequence->prefill_tokens;
  }

  // Of the rows that prompts are padded with, those that a step computes.
  int32_t TakeRows(int32_t budget) {
    const int32_t rows = std::min(budget, rows_left_);
    rows_left_ -= rows;
    return rows;
  }

 private:
  int32_t width_ = 0;
  int32_t batch_tokens_ = 0;
  int32_t rows_left_ = 0;
};

}  // namespace ridge::worker
