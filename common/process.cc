#include "common/process.h"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/logging.h"

namespace ridge {
namespace {

constexpr rlim_t kMostDescriptors = rlim_t{1} << 20;

sigset_t TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

struct Termination {
  absl::Mutex mutex;
  bool held ABSL_GUARDED_BY(mutex) = false;
  int signal ABSL_GUARDED_BY(mutex) = 0;  // the first one, once held
};

// Outlives main, as the thread that watches does.
Termination& State() {
  static auto* const state = new Termination;
  return *state;
}

// Whether the signal is the first one since HoldTermination.
bool Keep(int signal) {
  Termination& state = State();
  absl::MutexLock lock(&state.mutex);
  if (!state.held || state.signal != 0) return false;
  state.signal = signal;
  return true;
}

// Nothing may keep the process from ending, such as a full pipe that nobody reads.
bool CanLog() {
  pollfd log{STDERR_FILENO, POLLOUT, 0};
  return poll(&log, 1, 0) == 1 && (log.revents & POLLOUT) != 0;
}

void WatchSignals() {
  const sigset_t signals = TerminationSignals();
  int signal = 0;
  bool drains = false;
  for (;; drains = true) {
    sigwait(&signals, &signal);
    if (!Keep(signal)) break;
  }
  if (drains && CanLog()) LogWarning("signal {} while draining: open streams are cut off at once", signal);
  // The signal's own default, so that whoever started the process sees what ended it.
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(signal);
}

}  // namespace

void InstallTermination() {
  const sigset_t signals = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::thread(WatchSignals).detach();
}

void HoldTermination() {
  Termination& state = State();
  absl::MutexLock lock(&state.mutex);
  state.held = true;
}

int WaitForTermination() {
  Termination& state = State();
  absl::MutexLock lock(&state.mutex);
  RIDGE_CHECK(state.held);
  const auto came = [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) { return state.signal != 0; };
  state.mutex.Await(absl::Condition(&came));
  return state.signal;
}

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors));
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace ridge
