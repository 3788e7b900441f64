#include "kernels/rope_table.h"

#include <cmath>
#include <numbers>

namespace ridge::kernels {
namespace {

double Frequency(double theta, int64_t head_dim, int64_t i) {
  return std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
}

}  // namespace

RopeTable MakeRopeTable(double theta, int64_t head_dim, absl::Span<const double> divisors,
                        int64_t positions) {
  const int64_t half = head_dim / 2;
  RopeTable table;
  table.cosines.resize(positions * half);
  table.sines.resize(positions * half);
  for (int64_t i = 0; i < half; ++i) {
    const double divisor = divisors.empty() ? 1.0 : divisors[i];
    const double frequency = Frequency(theta, head_dim, i) / divisor;
    for (int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table.cosines[position * half + i] = static_cast<float>(std::cos(angle));
      table.sines[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

std::vector<double> Llama3RopeDivisors(double theta, int64_t head_dim, const Llama3RopeScaling& scaling) {
  std::vector<double> divisors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double wavelength = 2.0 * std::numbers::pi / Frequency(theta, head_dim, i);
    const double waves = scaling.original_context / wavelength;  // in the original context
    if (waves < scaling.low_freq_factor) {
      divisors.push_back(scaling.factor);
    } else if (waves > scaling.high_freq_factor) {
      divisors.push_back(1.0);
    } else {
      const double keep =
          (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      divisors.push_back(1.0 / ((1.0 - keep) / scaling.factor + keep));
    }
  }
  return divisors;
}

}  // namespace ridge::kernels
