#include "bench/roofline/arithmetic.h"

#include <cmath>

#include "gtest/gtest.h"
#include "worker/model/open_model.h"

namespace ridge::bench {
namespace {

worker::ModelConfig Qwen() {
  return (*worker::OpenModel("synthetic:qwen2.5-1.5b"))->config();
}
DataSheet A10() {
  return *FindDataSheet("a10");
}

// The published arithmetic of the series, for Qwen2.5-1.5B on an A10.
TEST(SizeOf, CountsWhatTheSeriesCounted) {
  const ModelSize size = SizeOf(Qwen());
  EXPECT_EQ(size.parameters, 1'543'714'304);
  EXPECT_EQ(size.layer_parameters, 1'310'340'608);
  EXPECT_EQ(size.head_parameters, 233'373'696);
  EXPECT_EQ(size.kv_bytes_per_token, 28'672);
  EXPECT_EQ(size.kv_bytes_without_groups, 6 * 28'672);
  EXPECT_EQ(size.attention_flops_per_pair, 2 * 86'016);
  EXPECT_NEAR(size.weight_bytes / 1073741824.0, 2.88, 0.005);
}

TEST(DecodeFloor, IsTheWeightsOverTheBandwidth) {
  const double step_s = DecodeFloor(SizeOf(Qwen()), A10(), 1, 0).seconds();
  EXPECT_NEAR(step_s, 5.15e-3, 0.01e-3);
  EXPECT_NEAR(1 / step_s, 194, 1);
  EXPECT_NEAR(RidgePoint(A10()), 208, 1);
}

TEST(DecodeFloor, TurnsToArithmeticAtTheRidgePoint) {
  const ModelSize size = SizeOf(Qwen());
  const StepFloor below = DecodeFloor(size, A10(), 150, 0), above = DecodeFloor(size, A10(), 300, 0);
  EXPECT_GT(below.memory_s, below.compute_s);
  EXPECT_LT(above.memory_s, above.compute_s);
}

TEST(ForwardsOf, RecomputationIsMostOfTheWork) {
  EXPECT_EQ(ForwardsOf(16, 256).without_cache, 36'736);
  EXPECT_EQ(ForwardsOf(4096, 256).without_cache, 1'081'216);
  EXPECT_EQ(ForwardsOf(4096, 256).with_cache, 4'351);
  EXPECT_NEAR(1'081'216.0 / 4'351, 248, 1);
}

TEST(PositionsIn, FollowFromTheBytesOfAToken) {
  const ModelSize size = SizeOf(Qwen());
  constexpr double kGiB = 1073741824.0;
  EXPECT_EQ(PositionsIn(size, 19 * kGiB) / 1000, 711);
  EXPECT_EQ(PositionsIn(size, 19 * kGiB) / (4096 + 256), 163);
  EXPECT_EQ(PositionsIn(size, 19 * kGiB) / 6 / (4096 + 256), 27);
  EXPECT_EQ(PositionsIn(size, 2 * kGiB), 74'898);
}

// 2 x layers x sum(n) + 2 x head x 256 + 86,016 x sum(n^2), n the length of each pass; the series rounds a
// pass's pairs n (n + 1) / 2 to n^2 / 2.
TEST(Flops, FollowTheFormulaOfTheSeries) {
  const ModelSize size = SizeOf(Qwen());
  double n = 0, squares = 0;
  for (int pass = 0; pass < 256; ++pass) {
    n += 1024 + pass;
    squares += std::pow(1024 + pass, 2);
  }
  const double series = 2.0 * 1'310'340'608 * n + 2.0 * 233'373'696 * 256 + 86'016 * squares;
  EXPECT_NEAR(FlopsWithoutCache(size, 1024, 256) / series, 1, 1e-3);
  EXPECT_NEAR(FlopsWithCache(size, 1024, 256),
              2.0 * 1'310'340'608 * 1279 + 2.0 * 233'373'696 * 256 + 172'032.0 * 1279 * 640, 1e6);
}

TEST(PrefillFloor, OfALongPromptIsArithmetic) {
  const StepFloor floor = PrefillFloor(SizeOf(Qwen()), A10(), 4096);
  EXPECT_GT(floor.compute_s, floor.memory_s);
  EXPECT_NEAR(floor.compute_s, (2.0 * 1.31034e9 * 4096 + 172'032.0 * 4096 * 4097 / 2) / 125e12, 1e-4);
}

TEST(FindDataSheet, ListsWhatThereIs) {
  EXPECT_EQ(FindDataSheet("h200")->bandwidth_gb_s, 4800);
  EXPECT_EQ(FindDataSheet("a11").status().message(),
            "no card \"a11\"; there is a10, a10g, l4, t4, l40s, a100-40gb, a100-80gb, h100, h200");
}

}  // namespace
}  // namespace ridge::bench
