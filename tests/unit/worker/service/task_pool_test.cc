#include "worker/service/task_pool.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

TEST(TaskPool, ALongTaskDoesNotHoldUpTheOthers) {
  TaskPool pool(2);
  absl::Notification long_may_end, short_ran;
  pool.Add([&] { long_may_end.WaitForNotification(); });
  pool.Add([&] { short_ran.Notify(); });
  short_ran.WaitForNotification();
  long_may_end.Notify();
}

TEST(TaskPool, BeginsTasksInOrder) {
  std::vector<int> order;
  {
    TaskPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Add([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(TaskPool, RunsWhatWasAddedBeforeItEnds) {
  std::atomic<int> ran = 0;
  {
    TaskPool pool;
    for (int i = 0; i < 1000; ++i) pool.Add([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

}  // namespace
}  // namespace ridge::worker
