#include "common/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/logging.h"

namespace ridge {
namespace {

constexpr int kRetryMs = 100;  // after descriptors ran out
constexpr absl::Duration kReportInterval = absl::Seconds(10);
constexpr int64_t kMostReserved = 64;

int64_t DescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
}

// Descriptors are given out lowest first: one as high as this means that so many are in use.
bool TakesFromReserve(int fd) {
  const int64_t limit = DescriptorLimit();
  return fd >= limit - std::min(kMostReserved, limit / 4);
}

void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  // The port stands at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// -1 with errno set where it fails.
int BindSocket(const addrinfo& info, int port) {
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_storage address{};
  std::memcpy(&address, info.ai_addr, info.ai_addrlen);
  reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(static_cast<uint16_t>(port));
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // not stopped by connections that are closing
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);  // accepted sockets inherit it
  if (info.ai_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);  // [::] is all of IPv4 too
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), info.ai_addrlen) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& flag, const HostPort& address) {
  auto listener = std::unique_ptr<Listener>(new Listener(flag, address));
  if (absl::Status status = listener->BindAll(); !status.ok()) return status;
  return listener;
}

Listener::~Listener() {
  Stop();
}

absl::Status Listener::CannotListen(absl::string_view reason) const {
  return absl::UnavailableError(absl::StrCat(flag_, ": cannot listen on ", ToString(address_), ": ", reason));
}

absl::Status Listener::BindAll() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(address_.host.c_str(), nullptr, &hints, &found);
  if (failed != 0) return CannotListen(gai_strerror(failed));
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  port_ = address_.port;
  int error = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int fd = BindSocket(*info, port_);
    if (fd >= 0) {
      sockets_.push_back(fd);
      port_ = PortOf(fd);  // one port for all addresses
      continue;
    }
    error = errno;
    // A name may have addresses of a family that this machine lacks.
    if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) return CannotListen(std::strerror(error));
  }
  if (sockets_.empty()) return CannotListen(std::strerror(error));
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return CannotListen(std::strerror(errno));
  return absl::OkStatus();
}

absl::Status Listener::Start(std::function<void(int fd)> take) {
  RIDGE_CHECK(!thread_.joinable() && !sockets_.empty());
  for (const int socket : sockets_) {
    if (listen(socket, SOMAXCONN) != 0) return CannotListen(std::strerror(errno));
  }
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void Listener::Stop() {
  if (thread_.joinable()) {
    RIDGE_CHECK(eventfd_write(wake_, 1) == 0);
    thread_.join();
  }
  for (const int socket : sockets_) close(socket);
  sockets_.clear();
  if (wake_ >= 0) close(wake_);
  wake_ = -1;
}

void Listener::Run() {
  std::vector<pollfd> polled = {{wake_, POLLIN, 0}};
  for (const int socket : sockets_) polled.push_back({socket, POLLIN, 0});
  for (;;) {
    poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    bool short_of_descriptors = false;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0 && !AcceptFrom(polled[i].fd)) short_of_descriptors = true;
    }
    // Whoever waits stays in the kernel's queue meanwhile.
    if (short_of_descriptors) poll(polled.data(), 1, kRetryMs);
  }
}

bool Listener::AcceptFrom(int socket) {
  for (;;) {
    const int fd = accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 && TakesFromReserve(fd)) {
      close(fd);
      ++refused_;
      ReportShortage("new connections are closed");
    } else if (fd >= 0) {
      take_(fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      ReportShortage(std::strerror(errno));
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    }
    // Anything else is the end of one connection that was about to come.
  }
}

void Listener::ReportShortage(absl::string_view what) {
  const absl::Time now = absl::Now();
  if (now - last_report_ < kReportInterval) return;
  last_report_ = now;
  LogWarning("{}: {}: nearly all of {} file descriptors (ulimit -n) are in use; {} connections were closed",
             flag_, std::string(what), DescriptorLimit(), refused_);
}

}  // namespace ridge
