// A TCP port whose connections are accepted here and handed on.
//
// gRPC's own listener never accepts again once accept() has failed for want of a file descriptor. This one
// waits and goes on. It also keeps some descriptors free for the rest of the process: a connection that would
// take one of those is closed at once, and logged.
//
// Threads: one of its own calls `take`. Start once, Stop any number of times, both from one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/address.h"

namespace ridge {

class Listener {
 public:
  // Takes the port on every address of the host; port 0 takes any free one. Connections are refused until
  // Start. An error names the flag ("--listen"), the address and the reason.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& flag, const HostPort& address);
  ~Listener();

  int port() const { return port_; }

  // `take` owns the descriptors that it gets, which do not block.
  absl::Status Start(std::function<void(int fd)> take);

  // Closes the port; no `take` runs after it.
  void Stop();

 private:
  Listener(std::string flag, HostPort address) : flag_(std::move(flag)), address_(std::move(address)) {}

  absl::Status BindAll();
  absl::Status CannotListen(absl::string_view reason) const;
  void Run();
  // Accepts what waits at the socket; false where descriptors have run out.
  bool AcceptFrom(int socket);
  void ReportShortage(absl::string_view what);

  const std::string flag_;
  const HostPort address_;
  int port_ = 0;
  std::vector<int> sockets_;
  int wake_ = -1;  // an eventfd: readable means stop
  std::function<void(int fd)> take_;
  std::thread thread_;

  // Of the thread alone.
  absl::Time last_report_ = absl::InfinitePast();
  int64_t refused_ = 0;
};

}  // namespace ridge
