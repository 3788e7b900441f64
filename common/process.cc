#include "common/process.h"

#include <pthread.h>
#include <csignal>

namespace ridge {
namespace {

sigset_t TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void BlockTerminationSignals() {
  const sigset_t signals = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int WaitForTermination() {
  const sigset_t signals = TerminationSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  // This thread takes the next one with the default action.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  return signal;
}

}  // namespace ridge
