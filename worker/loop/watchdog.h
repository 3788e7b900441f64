// Notices that an engine has work and makes no progress.
//
// Threads: a thread of its own asks and reports; the destructor joins it.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ridge::worker {

class Watchdog {
 public:
  // Asks every `interval` for how long there has been no progress (Engine::StalledNs). `on_change` hears true
  // when that reaches `limit`, and false when there is progress again.
  Watchdog(std::function<int64_t()> stalled_ns, absl::Duration limit, absl::Duration interval,
           std::function<void(bool stalled)> on_change);
  ~Watchdog();

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Run();

  const std::function<int64_t()> stalled_ns_;
  const int64_t limit_ns_;
  const absl::Duration interval_;
  const std::function<void(bool)> on_change_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ridge::worker
