#include "worker/loop/step_times.h"

#include <algorithm>

namespace ridge::worker {
namespace {

// The range that holds `counts` over `other`, count by count, and 1.
struct Ratios {
  double smallest = 1;
  double largest = 1;
};

Ratios RatiosOf(const StepCounts& counts, const StepCounts& other) {
  Ratios ratios;
  const auto include = [&ratios](int64_t a, int64_t b) {
    // One more of both: a count that only one of them has bounds nothing.
    const double ratio = static_cast<double>(a + 1) / static_cast<double>(b + 1);
    ratios.smallest = std::min(ratios.smallest, ratio);
    ratios.largest = std::max(ratios.largest, ratio);
  };
  include(counts.rows, other.rows);
  include(counts.prefill_pairs, other.prefill_pairs);
  include(counts.decode_positions, other.decode_positions);
  return ratios;
}

}  // namespace

StepCounts CountsOf(const StepPlan& plan) {
  StepResult total;
  CountRows(plan, &total);
  StepCounts counts{.rows = total.rows};
  for (const Segment& segment : plan.segments) {
    const int64_t rows = segment.num_rows;
    if (!IsDecode(segment)) counts.prefill_pairs += rows * segment.first_position + rows * (rows + 1) / 2;
  }
  counts.decode_positions = total.kv_positions - counts.prefill_pairs;
  return counts;
}

void StepTimes::Add(const StepCounts& counts, int64_t duration_ns) {
  steps_[added_++ % steps_.size()] = {counts, duration_ns};
}

int64_t StepTimes::Expect(const StepCounts& counts) const {
  double least = 0;
  double most = added_ == 0 ? 0 : static_cast<double>(INT64_MAX);
  for (size_t i = 0; i < std::min(added_, steps_.size()); ++i) {
    const Ratios ratios = RatiosOf(counts, steps_[i].counts);
    const auto duration_ns = static_cast<double>(steps_[i].duration_ns);
    least = std::max(least, duration_ns * ratios.smallest);
    most = std::min(most, duration_ns * ratios.largest);
  }
  return static_cast<int64_t>(std::min(least, most));
}

}  // namespace ridge::worker
