#include "kernels/cpu/thread_pool.h"

#include <chrono>

namespace ridge::kernels::cpu {
namespace {

constexpr std::chrono::microseconds kSpin{20};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread] { Work(thread); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    ++round_;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(const std::function<void(int)>& task) {
  if (threads_.empty()) return task(0);
  const uint64_t finished = finished_;
  task_ = &task;
  running_ = num_threads();
  {
    std::lock_guard lock(mutex_);
    ++round_;
  }
  changed_.notify_all();
  task(0);
  if (--running_ == 0) {
    ++finished_;
  } else {
    AwaitChange(finished_, finished);
  }
}

void ThreadPool::Work(int thread) {
  uint64_t round = 0;
  for (;;) {
    AwaitChange(round_, round);
    ++round;
    if (stopping_) return;
    (*task_)(thread);
    if (--running_ == 0) {
      {
        std::lock_guard lock(mutex_);
        ++finished_;
      }
      changed_.notify_all();
    }
  }
}

void ThreadPool::AwaitChange(const std::atomic<uint64_t>& counter, uint64_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (counter != old) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return counter != old; });
}

}  // namespace ridge::kernels::cpu
