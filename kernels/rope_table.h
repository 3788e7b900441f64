// The angles of rotary position embedding, from one table on every backend.
#pragma once

#include <cstdint>
#include <vector>

namespace ridge::kernels {

// cos and sin of position * theta^(-2i / head_dim) for i < head_dim / 2, computed in float64 and rounded
// once: [positions][head_dim / 2] each.
struct RopeTable {
  std::vector<float> cosines;
  std::vector<float> sines;
};

RopeTable MakeRopeTable(double theta, int64_t head_dim, int64_t positions);

}  // namespace ridge::kernels
