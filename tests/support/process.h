// A child process for tests: what it printed, how it ended, and no way to outlive the test.
//
// Ownership: the destructor kills the child with SIGKILL and reaps it. A test that dies takes its children
// along (they are tied to the thread that started them, so start them from the test's main thread). Threads:
// thread-compatible. Waits poll, and end early when the child ends.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ridge::testing {

class Process {
 public:
  // `command` is the program's path and its arguments; the environment is the test's own.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& command);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal);

  // The exit code, or 128 + the signal that ended the child; nothing when it still runs after `timeout`.
  std::optional<int> WaitForExit(absl::Duration timeout);
  bool Running() { return !WaitForExit(absl::ZeroDuration()).has_value(); }

  // What was printed so far.
  std::string Stdout() const;
  std::string Stderr() const;

  // The groups of the first match of `pattern` (ECMAScript) in the whole lines of stderr. An error carries
  // what was printed.
  absl::StatusOr<std::vector<std::string>> WaitForStderr(const std::string& pattern, absl::Duration timeout);

 private:
  Process() = default;

  pid_t pid_ = -1;
  int stdout_fd_ = -1;  // memory files, which never block a writer
  int stderr_fd_ = -1;
  std::optional<int> exit_code_;
};

}  // namespace ridge::testing
