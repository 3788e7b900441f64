#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <regex>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace ridge::testing {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(5);

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()))) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

// In the child, between fork and exec: only calls that are safe in a copy of one thread of many.
[[noreturn]] void Become(const std::vector<char*>& argv, pid_t parent, int out, int err) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
      dup2(err, STDERR_FILENO) < 0) {
    _exit(127);
  }
  execv(argv[0], argv.data());
  constexpr char kMessage[] = "cannot execute the program\n";
  (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const std::vector<std::string>& command) {
  auto process = std::unique_ptr<Process>(new Process());
  process->stdout_fd_ = memfd_create("stdout", MFD_CLOEXEC);
  process->stderr_fd_ = memfd_create("stderr", MFD_CLOEXEC);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(argv, parent, process->stdout_fd_, process->stderr_fd_);
  if (pid < 0) {
    return absl::InternalError(
        absl::StrCat("fork for ", absl::StrJoin(command, " "), ": ", std::strerror(errno)));
  }
  process->pid_ = pid;
  return process;
}

Process::~Process() {
  if (pid_ > 0 && !exit_code_.has_value()) {
    Signal(SIGKILL);
    WaitForExit(absl::InfiniteDuration());
  }
  close(stdout_fd_);
  close(stderr_fd_);
}

void Process::Signal(int signal) {
  // Once reaped, the id may be somebody else's.
  if (!exit_code_.has_value()) kill(pid_, signal);
}

std::optional<int> Process::WaitForExit(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!exit_code_.has_value()) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (absl::Now() >= deadline) {
      break;
    } else {
      absl::SleepFor(kPollInterval);
    }
  }
  return exit_code_;
}

std::string Process::Stdout() const {
  return ReadAll(stdout_fd_);
}

std::string Process::Stderr() const {
  return ReadAll(stderr_fd_);
}

absl::StatusOr<std::vector<std::string>> Process::WaitForStderr(const std::string& pattern,
                                                                absl::Duration timeout) {
  const std::regex regex(pattern);
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    // Asked before reading: what it printed last is not missed.
    const bool running = Running();
    const bool expired = absl::Now() >= deadline;
    const std::string text = Stderr();
    const std::string lines = text.substr(0, text.rfind('\n') + 1);
    std::smatch match;
    if (std::regex_search(lines, match, regex)) {
      std::vector<std::string> groups;
      for (size_t i = 1; i < match.size(); ++i) groups.push_back(match[i].str());
      return groups;
    }
    if (!running || expired) {
      return absl::DeadlineExceededError(absl::StrCat("the process ",
                                                      running ? "did not print" : "ended without", " \"",
                                                      pattern, "\"; it printed:\n", text));
    }
    absl::SleepFor(kPollInterval);
  }
}

}  // namespace ridge::testing
