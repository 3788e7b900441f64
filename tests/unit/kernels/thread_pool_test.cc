#include "kernels/cpu/thread_pool.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <chrono>
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

TEST(ThreadPool, BarrierShowsWhatTheOthersWroteBefore) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    std::vector<int> written(num_threads), seen(num_threads);
    pool.Run([&](int thread) {
      for (int round = 1; round <= 500; ++round) {
        written[thread] = round;
        pool.Barrier();
        for (int other : written) seen[thread] += other == round;
        pool.Barrier();
      }
    });
    EXPECT_EQ(seen, std::vector<int>(num_threads, 500 * num_threads));
  }
}

TEST(ThreadPool, ThreadsThatWaitAtABarrierMaySleep) {
  ThreadPool pool(2);
  int slow = 0, seen = 0;
  pool.Run([&](int thread) {
    if (thread == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      slow = 1;
    }
    pool.Barrier();
    if (thread == 1) seen = slow;
  });
  EXPECT_EQ(seen, 1);
}

#ifdef __linux__
TEST(ThreadPool, PinnedThreadsStayOnOneCoreEach) {
  ThreadPool pool(3, true);
  std::vector<int> cores(3);
  pool.Run([&](int thread) {
    cpu_set_t usable;
    if (thread > 0 && sched_getaffinity(0, sizeof(usable), &usable) == 0) cores[thread] = CPU_COUNT(&usable);
  });
  EXPECT_EQ(cores, (std::vector<int>{0, 1, 1}));
}
#endif

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
