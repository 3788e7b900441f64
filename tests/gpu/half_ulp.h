// Distance between fp16 results in units of the last place.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace ridge::gpu_test {

// The step between fp16 numbers at `value`.
inline double HalfUlp(double value) {
  const int exponent = std::max(std::ilogb(std::max(std::fabs(value), 0x1p-14)), -14);
  return std::ldexp(1.0, exponent - 10);
}

// The largest difference of two rows, each in units at the larger of the expected value and the row's root
// mean square: a sum that happens to cancel cannot be closer than its terms were.
inline double LargestErrorInUlps(const std::vector<float>& got, const std::vector<float>& expected) {
  double squares = 0;
  for (float value : expected) squares += double{value} * value;
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(double{got[i]} - expected[i]);
    if (!(error <= 1e30)) return INFINITY;  // NaN too
    largest = std::max(largest, error / HalfUlp(std::max(std::fabs(double{expected[i]}), rms)));
  }
  return largest;
}

}  // namespace ridge::gpu_test
