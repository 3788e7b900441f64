#include "router/policy.h"

#include <vector>

#include "gtest/gtest.h"

namespace ridge::router {
namespace {

WorkerLoad Ready(int64_t in_flight, int64_t reported, const std::string& model = "m") {
  WorkerLoad load;
  load.ready = true;
  load.model = model;
  load.in_flight = in_flight;
  load.reported = reported;
  return load;
}

TEST(LeastLoadedTest, TakesTheSmallestOfTheLargerCounts) {
  LeastLoaded policy;
  const std::vector<WorkerLoad> workers = {Ready(5, 0), Ready(0, 4), Ready(3, 3)};
  EXPECT_EQ(policy.Pick(workers, "m").value(), 2u);
}

TEST(LeastLoadedTest, EqualLoadsTakeTurns) {
  LeastLoaded policy;
  const std::vector<WorkerLoad> workers = {Ready(1, 1), Ready(1, 0), Ready(0, 1)};
  std::vector<size_t> picks;
  for (int i = 0; i < 6; ++i) picks.push_back(policy.Pick(workers, "").value());
  EXPECT_EQ(picks, (std::vector<size_t>{0, 1, 2, 0, 1, 2}));
}

TEST(LeastLoadedTest, TurnsSkipABusyWorker) {
  LeastLoaded policy;
  const std::vector<WorkerLoad> workers = {Ready(0, 0), Ready(9, 0), Ready(0, 0)};
  std::vector<size_t> picks;
  for (int i = 0; i < 4; ++i) picks.push_back(policy.Pick(workers, "").value());
  EXPECT_EQ(picks, (std::vector<size_t>{0, 2, 0, 2}));
}

TEST(LeastLoadedTest, LeavesOutWorkersThatAreNotReady) {
  LeastLoaded policy;
  std::vector<WorkerLoad> workers = {Ready(0, 0), Ready(7, 7)};
  workers[0].ready = false;
  EXPECT_EQ(policy.Pick(workers, "m").value(), 1u);
}

TEST(LeastLoadedTest, LeavesOutWorkersThatServeAnotherModel) {
  LeastLoaded policy;
  const std::vector<WorkerLoad> workers = {Ready(0, 0, "other"), Ready(7, 7, "m")};
  EXPECT_EQ(policy.Pick(workers, "m").value(), 1u);
  EXPECT_EQ(policy.Pick(workers, "").value(), 0u);
}

WorkerLoad Of(const std::string& numerics_id, int32_t context_length, const std::string& model = "m") {
  WorkerLoad load = Ready(0, 0, model);
  load.numerics_id = numerics_id;
  load.context_length = context_length;
  return load;
}

TEST(DifferingTest, WhatMostNamesakesHaveCounts) {
  EXPECT_EQ(Differing({Of("a", 352), Of("a", 8192), Of("a", 8192)}), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(Differing({Of("a", 8192), Of("b", 8192), Of("a", 8192)}),
            (std::vector<bool>{false, true, false}));
}

TEST(DifferingTest, TheFirstNamedDecidesATie) {
  EXPECT_EQ(Differing({Of("a", 8192), Of("a", 352)}), (std::vector<bool>{false, true}));
  EXPECT_EQ(Differing({Of("a", 352), Of("a", 8192), Of("a", 8192), Of("a", 352)}),
            (std::vector<bool>{false, true, true, false}));
}

TEST(DifferingTest, OtherModelsAndWorkersThatAreNotReadyDoNotCount) {
  std::vector<WorkerLoad> workers = {Of("a", 352), Of("a", 8192), Of("a", 8192), Of("x", 1, "other")};
  workers[1].ready = false;
  EXPECT_EQ(Differing(workers), (std::vector<bool>{false, false, true, false}));
  EXPECT_EQ(Differing({}), std::vector<bool>());
}

TEST(LeastLoadedTest, LeavesOutWorkersThatDiffer) {
  LeastLoaded policy;
  std::vector<WorkerLoad> workers = {Of("a", 352), Of("a", 8192), Of("a", 8192)};
  workers[1].in_flight = workers[2].in_flight = 5;
  EXPECT_EQ(policy.Pick(workers, "m").value(), 1u);
  EXPECT_EQ(policy.Pick(workers, "").value(), 2u);
  workers[1].excluded = workers[2].excluded = true;
  EXPECT_EQ(policy.Pick(workers, "m").status(), absl::UnavailableError("no other worker is ready"));
}

TEST(LeastLoadedTest, NoWorkerReadyIsUnavailable) {
  LeastLoaded policy;
  EXPECT_EQ(policy.Pick({}, "m").status(), absl::UnavailableError("no worker is ready"));
  EXPECT_EQ(policy.Pick({WorkerLoad{}}, "m").status(), absl::UnavailableError("no worker is ready"));
}

TEST(LeastLoadedTest, AModelThatNobodyServesIsNotFound) {
  LeastLoaded policy;
  const std::vector<WorkerLoad> workers = {Ready(0, 0, "z"), Ready(0, 0, "a"), Ready(0, 0, "a"),
                                           WorkerLoad{}};
  EXPECT_EQ(policy.Pick(workers, "x").status(),
            absl::NotFoundError("model: \"x\" is not served here; there is \"a\", \"z\""));
}

TEST(LeastLoadedTest, ExcludedWorkersAreNotTriedAgain) {
  LeastLoaded policy;
  std::vector<WorkerLoad> workers = {Ready(0, 0), Ready(9, 9)};
  workers[0].excluded = true;
  EXPECT_EQ(policy.Pick(workers, "m").value(), 1u);
  workers[1].excluded = true;
  EXPECT_EQ(policy.Pick(workers, "m").status(), absl::UnavailableError("no other worker is ready"));
}

}  // namespace
}  // namespace ridge::router
