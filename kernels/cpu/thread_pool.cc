#include "kernels/cpu/thread_pool.h"

#include <chrono>

#ifdef __linux__
#include <sched.h>
#endif

namespace ridge::kernels::cpu {
namespace {

constexpr std::chrono::microseconds kSpin{20};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `counter` is not `old`.
void AwaitChange(const std::atomic<uint32_t>& counter, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (counter.load(std::memory_order_acquire) != old) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  counter.wait(old, std::memory_order_acquire);
}

}  // namespace

void PinToCore([[maybe_unused]] int core) {
#ifdef __linux__
  cpu_set_t usable, one;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return;
  int skip = core % CPU_COUNT(&usable);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &usable) || skip-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
#endif
}

ThreadPool::ThreadPool(int num_threads, bool pin) {
  for (int thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread, pin] { Work(thread, pin); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(absl::FunctionRef<void(int)> task) {
  task_ = &task;
  ++round_;
  round_.notify_all();
  task(0);
  Barrier();
}

void ThreadPool::Barrier() {
  if (threads_.empty()) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_threads()) return AwaitChange(phase_, phase);
  arrived_.store(0, std::memory_order_relaxed);
  ++phase_;
  phase_.notify_all();
}

void ThreadPool::Work(int thread, bool pin) {
  if (pin) PinToCore(thread);
  for (uint32_t round = 0;; ++round) {
    AwaitChange(round_, round);
    if (stopping_) return;
    (*task_)(thread);
    Barrier();
  }
}

}  // namespace ridge::kernels::cpu
