#include "bench/workload/python_random.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;

// The expected numbers are what CPython 3.11 prints.
TEST(PythonRandom, GivesPythonsUniformNumbers) {
  PythonRandom random(0);
  EXPECT_EQ(random.Uniform(), 0.8444218515250481);
  EXPECT_EQ(random.Uniform(), 0.7579544029403025);
  EXPECT_EQ(random.Uniform(), 0.420571580830845);
}

TEST(PythonRandom, TakesSeedsOfTwoWords) {
  PythonRandom random((uint64_t{1} << 40) + 7);
  EXPECT_EQ(random.Uniform(), 0.6137037779936511);
}

TEST(PythonRandom, ChoosesAsPythonDoes) {
  PythonRandom random(0);
  std::vector<uint32_t> indices;
  for (int i = 0; i < 12; ++i) indices.push_back(random.Below(5));
  EXPECT_THAT(indices, ElementsAre(3, 3, 0, 2, 4, 3, 3, 2, 3, 2, 4, 1));
}

TEST(PythonRandom, ExponentialsAreRatesOfPythonsUniformNumbers) {
  PythonRandom random(0);
  EXPECT_DOUBLE_EQ(random.Exponential(1), 1.8606071110652234);
  EXPECT_DOUBLE_EQ(random.Exponential(1), 1.4186291529717618);
  EXPECT_DOUBLE_EQ(random.Exponential(2), 0.5457131455415928 / 2);
}

// Mean 1 and variance 1 / shape, within five standard errors.
TEST(PythonRandom, GammaHasItsMoments) {
  for (const double shape : {0.25, 0.5, 1.0, 2.0, 9.0}) {
    PythonRandom random(7);
    constexpr int kDraws = 200'000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double x = random.Gamma(shape);
      sum += x;
      squares += (x - 1) * (x - 1);
    }
    const double variance = 1 / shape;
    EXPECT_NEAR(sum / kDraws, 1, 5 * std::sqrt(variance / kDraws)) << shape;
    const double fourth = (3 + 6 / shape) * variance * variance;  // central moment
    EXPECT_NEAR(squares / kDraws, variance, 5 * std::sqrt((fourth - variance * variance) / kDraws)) << shape;
  }
}

}  // namespace
}  // namespace ridge::bench
