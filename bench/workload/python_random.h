// The random numbers of Python's `random.Random(seed)`, so that a workload drawn by a Python script can be
// drawn again here, number for number: the Mersenne Twister seeded by an array, and what CPython's library
// makes of its words.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <random>

namespace ridge::bench {

class PythonRandom {
 public:
  // As random.Random(seed) for a non-negative seed below 2^64.
  explicit PythonRandom(uint64_t seed);

  // random(): uniform in [0, 1), 53 bits.
  double Uniform();

  // The index that choice() takes in a sequence of this length, 1 to 2^31.
  uint32_t Below(uint32_t count);

  // expovariate(rate): mean 1 / rate.
  double Exponential(double rate);

  // Gamma-distributed with mean 1; not Python's own algorithm. Shape > 0.
  double Gamma(double shape);

 private:
  double Normal();

  std::mt19937 words_;
};

}  // namespace ridge::bench
