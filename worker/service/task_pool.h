// A few threads that run tasks: work that is too long for gRPC's threads. Tasks begin in the order in which
// they were added; one that takes long delays the others only when all threads are busy with such.
//
// Add may be called from any thread. The destructor runs what was added, then joins.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ridge::worker {

class TaskPool {
 public:
  static constexpr int kDefaultThreads = 4;

  explicit TaskPool(int threads = kDefaultThreads);
  ~TaskPool();

  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  void Add(std::function<void()> task);

 private:
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !tasks_.empty(); }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace ridge::worker
