#include "kernels/rope_table.h"

#include <cmath>

namespace ridge::kernels {

RopeTable MakeRopeTable(double theta, int64_t head_dim, int64_t positions) {
  const int64_t half = head_dim / 2;
  RopeTable table;
  table.cosines.resize(positions * half);
  table.sines.resize(positions * half);
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    for (int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table.cosines[position * half + i] = static_cast<float>(std::cos(angle));
      table.sines[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace ridge::kernels
