#include "common/grpc_server.h"

#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/security/server_credentials.h"

namespace ridge {
namespace {

constexpr int kMinPingIntervalMs = 10000;
constexpr int kKeepaliveTimeMs = 30000;
constexpr int kKeepaliveTimeoutMs = 10000;
constexpr int kHandshakeTimeoutMs = 20000;

std::shared_ptr<grpc::ServerCredentials> MakeCredentials() {
  return grpc::InsecureServerCredentials();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Bind(const GrpcServerOptions& options) {
  absl::StatusOr<HostPort> address = ParseHostPort("--listen", options.listen, 0);
  if (!address.ok()) return address.status();
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Bind("--listen", *address);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<GrpcServer>(new GrpcServer(options, *std::move(listener)));
}

absl::Status GrpcServer::Serve(const std::vector<grpc::Service*>& services) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  health_.SetServing("", true);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // A client that vanished without a word is noticed, and its requests are cancelled.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  // A connection that never becomes one of gRPC is closed.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, MakeCredentials());
  builder.RegisterService(&health_);
  for (grpc::Service* service : services) builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("the gRPC server does not start");
  return listener_->Start([acceptor = acceptor_.get()](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  });
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              const std::vector<grpc::Service*>& services) {
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = Bind(options);
  if (!server.ok()) return server.status();
  if (absl::Status status = (*server)->Serve(services); !status.ok()) return status;
  return server;
}

GrpcServer::~GrpcServer() {
  Shutdown(absl::ZeroDuration());
}

void GrpcServer::Shutdown(absl::Duration grace) {
  health_.Close();
  listener_->Stop();
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
}

}  // namespace ridge
