#include "worker/loop/step_times.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

// What a device without moods takes.
int64_t LinearNs(const StepCounts& counts) {
  return 6'000'000 + 43'000 * counts.rows + 4 * counts.prefill_pairs + 72 * counts.decode_positions;
}

StepCounts Counts(int64_t decodes, int64_t context, int64_t chunk_rows, int64_t chunk_begin) {
  return {decodes + chunk_rows, chunk_rows * chunk_begin + chunk_rows * (chunk_rows + 1) / 2,
          decodes * context};
}

TEST(StepTimesTest, CountWhatAPlanHolds) {
  StepPlan plan;
  plan.segments = {{0, 99, 1, true, 0, 1}, {1, 512, 100, false, 0, 0}};
  plan.padded_rows = 7;
  const StepCounts counts = CountsOf(plan);
  EXPECT_EQ(counts.rows, 108);
  EXPECT_EQ(counts.prefill_pairs, 100 * 512 + 5050);
  EXPECT_EQ(counts.decode_positions, 100);
}

TEST(StepTimesTest, NothingIsExpectedWithoutAnExample) {
  EXPECT_EQ(StepTimes().Expect({.rows = 100}), 0);
}

TEST(StepTimesTest, ASmallStepSaysLittleOfALargeOne) {
  StepTimes times;
  times.Add(Counts(8, 4000, 0, 0), LinearNs(Counts(8, 4000, 0, 0)));
  const StepCounts large = Counts(8, 4000, 504, 2048);
  EXPECT_GE(times.Expect(large), LinearNs(Counts(8, 4000, 0, 0)) * 99 / 100);
  EXPECT_LE(times.Expect(large), LinearNs(large));
}

TEST(StepTimesTest, ChunksOfLongPromptsAreKnownAfterAFewAndNeverOverestimated) {
  StepTimes times;
  std::mt19937 random(1);
  int close = 0;
  for (int step = 0; step < 432; ++step) {
    const int64_t decodes = 8 + random() % 3;
    const StepCounts counts = Counts(decodes, 4096 + random() % 64, 512 - decodes, 512 * (step % 8));
    const int64_t expected_ns = times.Expect(counts), actual_ns = LinearNs(counts);
    times.Add(counts, actual_ns);
    EXPECT_LE(expected_ns, actual_ns + 100) << step;
    if (step < 32) continue;
    EXPECT_GE(expected_ns, actual_ns * 17 / 20) << step;
    close += expected_ns >= actual_ns * 97 / 100;
  }
  EXPECT_GE(close, 360);  // of 400
}

TEST(StepTimesTest, NoiseLowersTheExpectation) {
  StepTimes times;
  std::mt19937 random(1);
  const StepCounts counts = Counts(64, 2000, 0, 0);
  for (int step = 0; step < 32; ++step) {
    const double noise = std::uniform_real_distribution<double>(1.0, 1.3)(random);
    times.Add(counts, static_cast<int64_t>(static_cast<double>(LinearNs(counts)) * noise));
  }
  times.Add(counts, 10 * LinearNs(counts));  // somebody stopped the process
  EXPECT_GE(times.Expect(counts), LinearNs(counts));
  EXPECT_LE(times.Expect(counts), LinearNs(counts) * 103 / 100);
}

TEST(StepTimesTest, OnlyTheLastStepsCount) {
  StepTimes times;
  const StepCounts counts = Counts(64, 2000, 0, 0);
  for (int step = 0; step < 32; ++step) times.Add(counts, 50'000'000);
  for (int step = 0; step < 32; ++step) times.Add(counts, 70'000'000);
  EXPECT_EQ(times.Expect(counts), 70'000'000);
}

}  // namespace
}  // namespace ridge::worker
