#include "worker/loop/watchdog.h"

#include <utility>

namespace ridge::worker {

Watchdog::Watchdog(std::function<int64_t()> stalled_ns, absl::Duration limit, absl::Duration interval,
                   std::function<void(bool)> on_change)
    : stalled_ns_(std::move(stalled_ns)),
      limit_ns_(absl::ToInt64Nanoseconds(limit)),
      interval_(interval),
      on_change_(std::move(on_change)),
      thread_([this] { Run(); }) {}

Watchdog::~Watchdog() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  thread_.join();
}

void Watchdog::Run() {
  bool reported = false;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&closed_), interval_)) return;
    }
    const bool stalled = stalled_ns_() >= limit_ns_;
    if (stalled != reported) on_change_(stalled);
    reported = stalled;
  }
}

}  // namespace ridge::worker
