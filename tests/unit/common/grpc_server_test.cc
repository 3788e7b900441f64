#include "common/grpc_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "ridge/v1/inference.grpc.pb.h"

namespace ridge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Tokenize hangs until it is cancelled.
class HangingService : public v1::Inference::CallbackService {
 public:
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* /*context*/,
                                     const v1::TokenizeRequest* /*request*/,
                                     v1::TokenizeResponse* /*response*/) override {
    class Hanging : public grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    auto* reactor = new Hanging;
    called_.Notify();
    return reactor;
  }

  absl::Notification called_;
};

std::shared_ptr<grpc::Channel> Connect(const GrpcServer& server) {
  return grpc::CreateChannel(absl::StrCat("127.0.0.1:", server.port()), grpc::InsecureChannelCredentials());
}

std::unique_ptr<GrpcServer> StartServer(const std::vector<grpc::Service*>& services) {
  return GrpcServer::Start(GrpcServerOptions{}, services).value();
}

// One request and one answer of the reflection service, as wire bytes: its stubs are not installed.
std::string Reflect(const GrpcServer& server, const std::string& request) {
  grpc::GenericStub stub(Connect(server));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  void* tag;
  bool ok = false;
  auto call =
      stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  queue.Next(&tag, &ok);
  EXPECT_TRUE(ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice flat;
  EXPECT_TRUE(answer.DumpToSingleSlice(&flat).ok());
  return std::string(reinterpret_cast<const char*>(flat.begin()), flat.size());
}

TEST(GrpcServerTest, ServesWhatItWasGiven) {
  v1::Inference::Service service;
  const std::unique_ptr<GrpcServer> server = StartServer({&service});
  EXPECT_GT(server->port(), 0);
  const auto stub = v1::Inference::NewStub(Connect(*server));
  grpc::ClientContext context;
  v1::GetModelResponse response;
  EXPECT_EQ(stub->GetModel(&context, {}, &response).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(GrpcServerTest, ReflectionListsTheServicesAndHealth) {
  v1::Inference::Service service;
  const std::unique_ptr<GrpcServer> server = StartServer({&service});
  // ServerReflectionRequest: list_services = 7, file_containing_symbol = 4.
  EXPECT_THAT(Reflect(*server, "\x3A\x01*"),
              AllOf(HasSubstr("ridge.v1.Inference"), HasSubstr("grpc.health.v1.Health")));
  EXPECT_THAT(Reflect(*server, "\x22\x15grpc.health.v1.Health"),
              AllOf(HasSubstr("HealthCheckRequest"), HasSubstr("ServingStatus")));
}

TEST(GrpcServerTest, AMessageOverTheLimitIsRefused) {
  GrpcServerOptions options;
  options.max_message_bytes = 100;
  const std::unique_ptr<GrpcServer> server = *GrpcServer::Start(options, {});
  const auto stub = grpc::health::v1::Health::NewStub(Connect(*server));
  for (const size_t size : {size_t{90}, size_t{200}}) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(std::string(size, 'x'));
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_EQ(stub->Check(&context, request, &response).error_code(),
              size < 100 ? grpc::StatusCode::NOT_FOUND : grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

TEST(GrpcServerTest, ACompressedMessageIsRefusedAtOnce) {
  v1::Inference::Service service;
  const std::unique_ptr<GrpcServer> server = StartServer({&service});
  const auto stub = grpc::health::v1::Health::NewStub(Connect(*server));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(std::string(1 << 20, 'a'));
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
}

// What gRPC's own listener does not survive.
TEST(GrpcServerTest, ServesAgainAfterDescriptorsHaveRunOut) {
  const std::unique_ptr<GrpcServer> server = StartServer({});
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  const rlimit low{200, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> clients;
  for (int fd; (fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0;) clients.push_back(fd);
  for (const int fd : clients) connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  absl::SleepFor(absl::Milliseconds(50));
  for (const int fd : clients) close(fd);
  EXPECT_GT(clients.size(), 100u);
  const auto stub = grpc::health::v1::Health::NewStub(Connect(*server));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  context.set_wait_for_ready(true);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  setrlimit(RLIMIT_NOFILE, &old);
}

TEST(GrpcServerTest, ATakenPortIsAnErrorThatNamesFlagAndAddress) {
  const std::unique_ptr<GrpcServer> first = StartServer({});
  GrpcServerOptions options;
  options.listen = absl::StrCat("127.0.0.1:", first->port());
  const absl::Status status = GrpcServer::Start(options, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              StartsWith(absl::StrCat("--listen: cannot listen on ", options.listen)));
}

TEST(GrpcServerTest, AnAddressThatIsNoneIsAnError) {
  GrpcServerOptions options;
  options.listen = "127.0.0.1:notaport";
  EXPECT_THAT(std::string(GrpcServer::Start(options, {}).status().message()),
              StartsWith("--listen: \"127.0.0.1:notaport\" is not host:port"));
}

TEST(GrpcServerTest, ShutdownCancelsWhatOutlivesTheGrace) {
  HangingService service;
  const std::unique_ptr<GrpcServer> server = StartServer({&service});
  const auto stub = v1::Inference::NewStub(Connect(*server));
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  absl::Notification done;
  grpc::Status status;
  stub->async()->Tokenize(&context, &request, &response, [&](grpc::Status result) {
    status = result;
    done.Notify();
  });
  service.called_.WaitForNotification();
  const absl::Time begin = absl::Now();
  server->Shutdown(absl::Milliseconds(50));
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(50));
  done.WaitForNotification();
  EXPECT_FALSE(status.ok());
}

TEST(GrpcServerTest, ShutdownTwiceIsFine) {
  const std::unique_ptr<GrpcServer> server = StartServer({});
  server->Shutdown(absl::Seconds(1));
  server->Shutdown(absl::ZeroDuration());
}

}  // namespace
}  // namespace ridge
