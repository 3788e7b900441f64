// Keeps a step short in which a tenant has a short prompt while another floods, that is, has more to prefill
// than a step takes: beside the prompts of others the flooding ones get, all together, no more rows than
// those have, or an eighth of the step where that is more. So nobody waits much longer for a first token than
// twice what its own prompt takes, and the end of the step before. Never in two steps in a row, which bounds
// what it costs: a step's fixed part, in every second step at most.
//
// Threads: engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace ridge::worker {

class FloodLimit {
 public:
  explicit FloodLimit(int32_t step_tokens) : least_rows_(std::max(step_tokens / 8, 1)) {}

  void BeginStep() {
    last_was_short_ = std::exchange(is_short_, false);
    light_rows_ = flood_rows_ = 0;
  }

  // Most rows that a tenant that floods may have more.
  int32_t RowsLeft() const {
    if (light_rows_ == 0 || last_was_short_) return INT32_MAX;
    return std::max(std::max(light_rows_, least_rows_) - flood_rows_, 0);
  }

  // A prompt's rows are in the step.
  void Add(int32_t rows, bool floods) { (floods ? flood_rows_ : light_rows_) += rows; }

  // The step ends here, with rows left.
  void EndShort() { is_short_ = true; }

 private:
  const int32_t least_rows_;
  int32_t light_rows_ = 0;
  int32_t flood_rows_ = 0;
  bool is_short_ = false;
  bool last_was_short_ = false;
};

}  // namespace ridge::worker
