#include "common/server_ports.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/status.h"

namespace ridge {

absl::StatusOr<std::unique_ptr<ServerPorts>> ServerPorts::Open(ServerPortsOptions options) {
  absl::StatusOr<HostPort> address = ParseHostPort("--listen", options.grpc.listen, 0);
  if (!address.ok()) return address.status();
  if (address->port > 0 && options.metrics_port == address->port) {
    return InvalidField("--metrics_port", absl::StrCat(options.metrics_port, " is the port of --listen"));
  }
  auto ports = std::unique_ptr<ServerPorts>(new ServerPorts());
  ports->host_ = address->host;
  absl::StatusOr<std::unique_ptr<GrpcServer>> grpc = GrpcServer::Bind(options.grpc);
  if (!grpc.ok()) return grpc.status();
  ports->grpc_ = *std::move(grpc);
  if (options.metrics_port < 0) return ports;
  options.http.host = address->host;
  options.http.port = options.metrics_port;
  absl::StatusOr<std::unique_ptr<HttpPort>> http = HttpPort::Start(std::move(options.http));
  if (!http.ok()) return http.status();
  ports->http_ = *std::move(http);
  return ports;
}

std::string ServerPorts::Describe() const {
  const std::string metrics = http_ == nullptr ? "none" : ToString(HostPort{host_, http_->port()});
  return absl::StrCat("gRPC on ", ToString(HostPort{host_, grpc_->port()}), ", metrics on ", metrics);
}

}  // namespace ridge
