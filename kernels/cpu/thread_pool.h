// A fixed set of threads that run one function together, each with its share by number.
//
// Threads: Run is called by one thread at a time, which takes part as number 0. Waiting threads spin for at
// most 20 us, then sleep, so that an idle pool costs nothing and several processes share a machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace ridge::kernels::cpu {

class ThreadPool {
 public:
  // num_threads >= 1 counts the caller. With `pin` each of the others stays on a core of its own; the caller
  // calls PinToCore(0) for itself.
  explicit ThreadPool(int num_threads, bool pin = false);
  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls task(thread) on every thread and returns when all are done.
  void Run(absl::FunctionRef<void(int)> task);

  // Within a task, called by every thread equally often: returns when all have called it. What any thread
  // wrote before is visible to all afterwards.
  void Barrier();

 private:
  void Work(int thread, bool pin);

  std::vector<std::thread> threads_;
  const absl::FunctionRef<void(int)>* task_ = nullptr;
  std::atomic<uint32_t> round_{0};  // a new one begins a task
  std::atomic<uint32_t> phase_{0};  // barriers that were passed
  std::atomic<int> arrived_{0};     // at the next barrier
  std::atomic<bool> stopping_{false};
};

// Keeps the calling thread on the core'th of the cores that it may use, modulo their number; where the system
// has no such call, does nothing.
void PinToCore(int core);

// Thread `thread` of `num_threads` takes [begin, end) of `count` items, in shares that differ by one at most.
struct Share {
  int64_t begin;
  int64_t end;
};
constexpr Share ShareOf(int64_t count, int thread, int num_threads) {
  return {count * thread / num_threads, count * (thread + 1) / num_threads};
}

}  // namespace ridge::kernels::cpu
