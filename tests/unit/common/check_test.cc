#include "common/check.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

TEST(CheckTest, PassesAndEvaluatesOnce) {
  int evaluations = 0;
  RIDGE_CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
}

TEST(CheckDeathTest, AbortsWithPlaceAndExpression) {
  const int blocks = 3;
  EXPECT_DEATH(RIDGE_CHECK(blocks == 4), "check_test.cc:[0-9]+: check failed: blocks == 4");
}

}  // namespace
}  // namespace ridge
