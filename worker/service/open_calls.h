// How many streams are open, so that a drain can wait for the last one. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ridge::worker {

class OpenCalls {
 public:
  void Enter() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Leave() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }
  int count() const {
    absl::MutexLock lock(&mutex_);
    return count_;
  }
  // False where some are still open after `timeout`.
  bool WaitUntilNone(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &OpenCalls::None), timeout);
  }

 private:
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == 0; }

  mutable absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ridge::worker
