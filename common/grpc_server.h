// A gRPC server with what every process of ours has: health, reflection, keepalive rules, bounded messages,
// and a port that outlives a shortage of file descriptors.
//
// Compressed messages are refused: gRPC would inflate them whole before it looks at their size.
//
// Threads: SetServing may be called from any thread, the rest from one. Ownership: the services belong to the
// caller and outlive the server.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/health_service.h"
#include "common/listener.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace ridge {

inline constexpr int64_t kDefaultMaxMessageBytes = int64_t{16} << 20;

struct GrpcServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0: any free one. Errors call it --listen
  int64_t max_message_bytes = kDefaultMaxMessageBytes;
};

class GrpcServer {
 public:
  // Takes the port; connections are refused until Serve. An error names the flag and the address.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Bind(const GrpcServerOptions& options);
  // Once.
  absl::Status Serve(const std::vector<grpc::Service*>& services);
  // Both.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           const std::vector<grpc::Service*>& services);
  // Cancels what is still open.
  ~GrpcServer();

  int port() const { return listener_->port(); }

  // Health of a service by its full name; "" is the process and serves from the start.
  void SetServing(const std::string& service, bool serving) { health_.SetServing(service, serving); }

  // Accepts nothing new, waits up to `grace` for open calls, then cancels them.
  void Shutdown(absl::Duration grace);

 private:
  GrpcServer(const GrpcServerOptions& options, std::unique_ptr<Listener> listener)
      : options_(options), listener_(std::move(listener)) {}

  const GrpcServerOptions options_;
  HealthService health_;
  // The listener hands connections to the acceptor, which belongs to the server.
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace ridge
