#include "bench/workload/python_random.h"

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

namespace ridge::bench {
namespace {

constexpr int kStateWords = 624;

// A seed sequence in the sense of the standard: gives the generator the state that Matsumoto and Nishimura's
// init_by_array makes of the key. Python's key is the seed in words of 32 bits, at least one.
class ArraySeed {
 public:
  using result_type = uint32_t;

  explicit ArraySeed(uint64_t seed)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, size_(key_[1] == 0 ? 1 : 2) {}

  template <typename Iterator>
  void generate(Iterator begin, Iterator end) const {
    std::array<uint32_t, kStateWords> state;
    state[0] = 19650218;
    for (uint32_t i = 1; i < kStateWords; ++i) state[i] = 1812433253 * Folded(state[i - 1]) + i;
    int at = 1;
    const auto advance = [&] {
      if (++at < kStateWords) return;
      state[0] = state[kStateWords - 1];
      at = 1;
    };
    for (int k = 0; k < kStateWords; ++k) {
      const int word = k % size_;
      state[at] = (state[at] ^ (Folded(state[at - 1]) * 1664525)) + key_[word] + static_cast<uint32_t>(word);
      advance();
    }
    for (int k = 1; k < kStateWords; ++k) {
      state[at] = (state[at] ^ (Folded(state[at - 1]) * 1566083941)) - static_cast<uint32_t>(at);
      advance();
    }
    state[0] = 0x80000000;
    for (size_t i = 0; begin != end; ++begin, ++i) *begin = state[i % kStateWords];
  }

 private:
  static uint32_t Folded(uint32_t word) { return word ^ (word >> 30); }

  std::array<uint32_t, 2> key_;
  int size_;
};

}  // namespace

PythonRandom::PythonRandom(uint64_t seed) {
  ArraySeed key(seed);
  words_.seed(key);
}

double PythonRandom::Uniform() {
  const auto high = static_cast<double>(words_() >> 5);
  const auto low = static_cast<double>(words_() >> 6);
  return (high * 0x1p26 + low) * 0x1p-53;
}

uint32_t PythonRandom::Below(uint32_t count) {
  // As many bits as `count` itself has, drawn again until they are below it.
  const int shift = 32 - std::bit_width(count);
  for (;;) {
    const auto value = static_cast<uint32_t>(words_() >> shift);
    if (value < count) return value;
  }
}

double PythonRandom::Exponential(double rate) {
  return -std::log(1.0 - Uniform()) / rate;
}

double PythonRandom::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

// Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26, 2000; a shape below 1
// is raised by one and taken back by a power of a uniform number.
double PythonRandom::Gamma(double shape) {
  const double raised = shape < 1.0 ? shape + 1.0 : shape;
  const double d = raised - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = Normal();
    const double root = 1.0 + c * x;
    if (root <= 0.0) continue;
    const double v = root * root * root;
    if (std::log(1.0 - Uniform()) >= 0.5 * x * x + d - d * v + d * std::log(v)) continue;
    const double power = shape < 1.0 ? std::pow(1.0 - Uniform(), 1.0 / shape) : 1.0;
    return d * v * power / shape;
  }
}

}  // namespace ridge::bench
