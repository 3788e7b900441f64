// The oracle's float32 mode against the formulas in float64.
#include "kernels/reference/ops.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/rope_table.h"

namespace ridge::kernels::reference {
namespace {

std::vector<float> Random(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

// Relative to 1 or the value, whichever is larger.
void ExpectClose(float got, double expected) {
  EXPECT_NEAR(got, expected, 1e-6 * std::max(1.0, std::fabs(expected)));
}

TEST(ReferenceFloat32, MatmulIsTheSumOfProductsPlusBias) {
  const int64_t m = 3, n = 5, k = 700;
  const std::vector<float> x = Random(m * k, 1), w = Random(n * k, 2), bias = Random(n, 3);
  std::vector<float> y(m * n);
  Matmul(Mode::kFloat32, x.data(), w.data(), bias.data(), m, n, k, y.data());
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double sum = bias[column];
      for (int64_t i = 0; i < k; ++i) sum += double{x[row * k + i]} * w[column * k + i];
      ExpectClose(y[row * n + column], sum);
    }
  }
}

TEST(ReferenceFloat32, RmsNormDividesByTheRootMeanSquareWithEps) {
  const int64_t size = 300;
  std::vector<float> x = Random(size, 4), out(size);
  const std::vector<float> weight = Random(size, 5);
  for (float& value : x) value *= 1e-2f;  // where eps counts
  RmsNorm(Mode::kFloat32, x.data(), weight.data(), 1e-4f, size, out.data());
  double squares = 0;
  for (float value : x) squares += double{value} * value;
  const double root = std::sqrt(squares / size + 1e-4);
  for (int64_t i = 0; i < size; ++i) ExpectClose(out[i], x[i] / root * weight[i]);
}

TEST(ReferenceFloat32, NormHeadDividesByTheRootMeanSquareWithEps) {
  const int64_t d = 96;
  const std::vector<float> before = Random(d, 15), weight = Random(d, 16);
  std::vector<float> x = before;
  NormHead(Mode::kFloat32, weight.data(), 0.5f, d, x.data());
  double squares = 0;
  for (float value : before) squares += double{value} * value;
  const double root = std::sqrt(squares / d + 0.5);
  for (int64_t i = 0; i < d; ++i) ExpectClose(x[i], before[i] / root * weight[i]);
}

TEST(ReferenceFloat32, RotatesPairsByTheAngleOfThePosition) {
  const int64_t d = 64, position = 777;
  const RopeTable table = MakeRopeTable(10000.0, d, {}, position + 1);
  const std::vector<float> before = Random(d, 6);
  std::vector<float> x = before;
  RotateHead(Mode::kFloat32, table.cosines.data() + position * d / 2, table.sines.data() + position * d / 2,
             d, x.data());
  for (int64_t i = 0; i < d / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / d);
    ExpectClose(x[i], before[i] * std::cos(angle) - before[i + d / 2] * std::sin(angle));
    ExpectClose(x[i + d / 2], before[i + d / 2] * std::cos(angle) + before[i] * std::sin(angle));
  }
}

TEST(ReferenceFloat32, SwiGluGatesByTheSigmoid) {
  const std::vector<float> gate = {-200, -3, -0.5f, 0, 0.5f, 3, 200}, up = {1, 2, -3, 4, 5, 1e5f, 1};
  std::vector<float> out(gate.size());
  SwiGlu(Mode::kFloat32, gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    ExpectClose(out[i], gate[i] / (1 + std::exp(-double{gate[i]})) * up[i]);
  }
}

TEST(ReferenceFloat32, AttentionIsTheSoftmaxOfScaledScores) {
  const int64_t d = 32, num_keys = 600;
  const std::vector<float> q = Random(d, 7), keys = Random(num_keys * d, 8), values = Random(num_keys * d, 9);
  std::vector<float> out(d);
  Attention(Mode::kFloat32, q.data(), keys.data(), values.data(), num_keys, d, out.data());
  std::vector<double> expected(d);
  double total = 0;
  for (int64_t key = 0; key < num_keys; ++key) {
    double score = 0;
    for (int64_t i = 0; i < d; ++i) score += double{q[i]} * keys[key * d + i];
    const double weight = std::exp(score / std::sqrt(32.0));
    total += weight;
    for (int64_t i = 0; i < d; ++i) expected[i] += weight * values[key * d + i];
  }
  for (int64_t i = 0; i < d; ++i) ExpectClose(out[i], expected[i] / total);
}

TEST(ReferenceFloat32, RoundsNothingToHalf) {
  std::vector<float> x = {0.1f, 1e6f};
  RoundRow(Mode::kFloat32, 2, x.data());
  EXPECT_EQ(x, (std::vector<float>{0.1f, 1e6f}));
  RoundRow(Mode::kContract, 2, x.data());
  EXPECT_EQ(x, (std::vector<float>{0.0999755859375f, 65504.0f}));
}

}  // namespace
}  // namespace ridge::kernels::reference
