// The angles of rotary position embedding, from one table on every backend.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ridge::kernels {

// cos and sin of position * theta^(-2i / head_dim) / divisors[i] for i < head_dim / 2, computed in float64
// and rounded once: [positions][head_dim / 2] each.
struct RopeTable {
  std::vector<float> cosines;
  std::vector<float> sines;
};

// `divisors` has head_dim / 2 numbers, or none where the model's positions are not scaled.
RopeTable MakeRopeTable(double theta, int64_t head_dim, absl::Span<const double> divisors, int64_t positions);

// How Llama 3.x reaches beyond the context that it was first trained for: waves that are short against that
// context stay, long ones are stretched by `factor`, those between are blended.
struct Llama3RopeScaling {
  double factor;
  double low_freq_factor;   // waves longer than original_context / low_freq_factor are stretched
  double high_freq_factor;  // waves shorter than original_context / high_freq_factor stay
  double original_context;
};

// The divisors that this gives. REQUIRES: all numbers positive, high_freq_factor > low_freq_factor.
std::vector<double> Llama3RopeDivisors(double theta, int64_t head_dim, const Llama3RopeScaling& scaling);

}  // namespace ridge::kernels
