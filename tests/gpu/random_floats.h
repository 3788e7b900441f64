// Made-up values for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ridge::gpu_test {

// Normally distributed around 0.
inline std::vector<float> RandomFloats(size_t size, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace ridge::gpu_test
