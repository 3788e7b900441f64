// A gRPC server with what every process of ours has: health, reflection, keepalive rules and bounded
// messages.
//
// Threads: SetServing and Shutdown may be called from any thread. Ownership: the services belong to the
// caller and outlive the server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/health_service.h"
#include "grpcpp/server.h"

namespace ridge {

inline constexpr int64_t kDefaultMaxMessageBytes = int64_t{16} << 20;

struct GrpcServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0: any free one
  std::string flag_name = "listen";    // for errors
  int64_t max_message_bytes = kDefaultMaxMessageBytes;
};

class GrpcServer {
 public:
  // An error names the flag and the address.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           const std::vector<grpc::Service*>& services);
  // Cancels what is still open.
  ~GrpcServer();

  int port() const { return port_; }

  // Health of a service by its full name; "" is the process and serves from the start.
  void SetServing(const std::string& service, bool serving) { health_.SetServing(service, serving); }

  // Accepts nothing new, waits up to `grace` for open calls, then cancels them.
  void Shutdown(absl::Duration grace);

 private:
  GrpcServer() = default;

  HealthService health_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace ridge
