#include "kernels/cpu/thread_pool.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ridge::kernels::cpu {
namespace {

TEST(ThreadPool, RunsTheTaskOnceOnEveryThread) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    std::vector<int> calls(num_threads);
    for (int round = 0; round < 1000; ++round) pool.Run([&](int thread) { ++calls[thread]; });
    EXPECT_EQ(calls, std::vector<int>(num_threads, 1000));
  }
}

TEST(ThreadPool, WakesThreadsThatSleep) {
  ThreadPool pool(2);
  std::vector<int> calls(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.Run([&](int thread) { ++calls[thread]; });
  }
  EXPECT_EQ(calls, std::vector<int>(2, 5));
}

TEST(ShareOf, CoversEverythingOnce) {
  for (const int64_t count : {0, 1, 7, 100}) {
    int64_t next = 0;
    for (int thread = 0; thread < 3; ++thread) {
      const Share share = ShareOf(count, thread, 3);
      EXPECT_EQ(share.begin, next);
      next = share.end;
    }
    EXPECT_EQ(next, count);
  }
}

}  // namespace
}  // namespace ridge::kernels::cpu
