// The two ports of a server process: gRPC, and the HTTP port for people and scrapers on the same host.
//
// Both are taken at once, so that a port which is not to be had is found before anything slow is done. From
// Open on the HTTP port answers (not ready); gRPC connections are refused until Serve.
//
// Threads: SetServing may be called from any thread, the rest from one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/grpc_server.h"
#include "common/http_port.h"

namespace ridge {

struct ServerPortsOptions {
  GrpcServerOptions grpc;
  int metrics_port = 0;  // 0: any free one, -1: none
  HttpPortOptions http;  // but for host and port
};

class ServerPorts {
 public:
  // Errors name --listen or --metrics_port.
  static absl::StatusOr<std::unique_ptr<ServerPorts>> Open(ServerPortsOptions options);

  absl::Status Serve(const std::vector<grpc::Service*>& services) { return grpc_->Serve(services); }

  int grpc_port() const { return grpc_->port(); }
  // -1 where there is none.
  int metrics_port() const { return http_ == nullptr ? -1 : http_->port(); }
  // "gRPC on 127.0.0.1:50051, metrics on 127.0.0.1:9101"
  std::string Describe() const;

  void SetServing(const std::string& service, bool serving) { grpc_->SetServing(service, serving); }

  // Closes the gRPC port: accepts nothing new, waits up to `grace` for open calls, then cancels them.
  void ShutdownGrpc(absl::Duration grace) { grpc_->Shutdown(grace); }

 private:
  ServerPorts() = default;

  std::string host_;
  std::unique_ptr<GrpcServer> grpc_;  // cancels what is still open when it goes
  std::unique_ptr<HttpPort> http_;
};

}  // namespace ridge
