// The workloads that the measurements draw. Pure: a seed gives the same requests everywhere.
#pragma once

#include <cstdint>

#include "bench/workload/workload.h"

namespace ridge::bench {

// Arrivals over time. Exactly one shape: gaps are gamma-distributed with this shape (1: a Poisson process,
// below: bursts, above: more even) around a rate that goes from `first_rate` to `last_rate`, evenly over the
// requests.
struct Arrivals {
  double first_rate = 1;  // requests a second, > 0
  double last_rate = 1;
  double burstiness = 1;  // shape of the gamma distribution, > 0
  uint64_t seed = 0;
};

// `count` copies of one prompt, all at once.
Workload UniformDraw(int32_t prompt_tokens, int32_t max_tokens, int32_t count);

// "mixed-x32", with another seed than the series' 0 "mixed-s7-x32". Each request takes its prompt length from
// 16, 64, 256, 1024, 4096 and then its budget from 64, 128, 192, 256, both by Python's
// random.Random(seed).choice; all at once.
Workload MixedDraw(uint64_t seed, int32_t count);

// Gives each request its time. With burstiness 1 and one rate these are the sums of
// random.Random(seed).expovariate(1) / rate.
void SetArrivals(const Arrivals& arrivals, Workload* workload);

// "p" and the number of tokens.
std::string PromptLabel(int32_t prompt_tokens);

}  // namespace ridge::bench
