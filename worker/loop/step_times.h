// How long a step will take, from those before it, so that its successor can be planned shortly before its
// end. Rather too low than too high.
//
// A device's step takes about a constant and a part for each of its counts. So it takes no less than another
// step times the smallest ratio of their counts (1, for the constant, among them), and no more than that step
// times the largest. The estimate is the highest of these lower bounds over the last steps, or the lowest of
// the upper ones where noise has put that below.
//
// Threads: engine thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "worker/backend/step_plan.h"

namespace ridge::worker {

// What a step's time grows with.
struct StepCounts {
  int64_t rows = 0;
  int64_t prefill_pairs = 0;     // of a prompt's row and a position that it attends to
  int64_t decode_positions = 0;  // the same of the other rows
};

StepCounts CountsOf(const StepPlan& plan);

class StepTimes {
 public:
  void Add(const StepCounts& counts, int64_t duration_ns);

  // 0 where no step before it says anything.
  int64_t Expect(const StepCounts& counts) const;

 private:
  struct Step {
    StepCounts counts;
    int64_t duration_ns;
  };
  std::array<Step, 32> steps_;  // the last ones
  size_t added_ = 0;
};

}  // namespace ridge::worker
