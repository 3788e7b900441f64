// The streams that are open, so that a drain can wait for the last one, and cut what takes too long.
//
// Thread-safe. Lock order: this object's mutex, then a call's own.
#pragma once

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ridge {

class OpenCall {
 public:
  // The call is to end soon, with this status.
  virtual void Cut(const absl::Status& status) = 0;

 protected:
  ~OpenCall() = default;
};

class OpenCalls {
 public:
  // False while draining: the call is to be refused. It is entered all the same.
  bool Enter(OpenCall* call);
  void Leave(OpenCall* call);

  int count() const;

  // From here on Enter is false. Waits until no call is open; after `timeout` cuts the rest with UNAVAILABLE,
  // `who` ("the worker stops") and the time-out, and gives them a moment to say so. Returns how many were
  // cut.
  int Drain(absl::Duration timeout, absl::string_view who);

 private:
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.empty(); }

  mutable absl::Mutex mutex_;
  std::set<OpenCall*> calls_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ridge
