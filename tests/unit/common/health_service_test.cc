#include "common/health_service.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grpc_server.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace ridge {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kName[] = "ridge.v1.Inference";

class HealthServiceTest : public testing::Test {
 protected:
  HealthServiceTest()
      : server_(GrpcServer::Start(GrpcServerOptions{}, {}).value()),
        stub_(Health::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                                  grpc::InsecureChannelCredentials()))) {
    request_.set_service(kName);
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Check(&context, request, response);
  }

  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Health::Stub> stub_;
  HealthCheckRequest request_;  // for kName
};

TEST_F(HealthServiceTest, TheProcessServesFromTheStart) {
  HealthCheckResponse response;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, AServiceIsUnknownUntilItIsSet) {
  HealthCheckResponse response;
  EXPECT_EQ(Check(kName, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  server_->SetServing(kName, false);
  ASSERT_TRUE(Check(kName, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server_->SetServing(kName, true);
  ASSERT_TRUE(Check(kName, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, WatchTellsEveryChangeAndStaysOpen) {
  grpc::ClientContext context;
  const auto stream = stub_->Watch(&context, request_);
  HealthCheckResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  server_->SetServing(kName, false);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server_->SetServing(kName, false);             // no news
  server_->SetServing("another.Service", true);  // not asked for
  server_->SetServing(kName, true);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  context.TryCancel();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthServiceTest, ShutdownEndsWatchesBeforeTheGraceIsOver) {
  grpc::ClientContext context;
  const auto stream = stub_->Watch(&context, request_);
  HealthCheckResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const absl::Time begin = absl::Now();
  server_->Shutdown(absl::Seconds(60));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(HealthServiceTest, WatchersMayComeAndGoWhileTheStatusFlips) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int j = 0; j < 25; ++j) {
        grpc::ClientContext context;
        const auto stream = stub_->Watch(&context, request_);
        HealthCheckResponse response;
        EXPECT_TRUE(stream->Read(&response));
        context.TryCancel();
        EXPECT_FALSE(stream->Finish().ok());
      }
    });
  }
  for (int i = 0; i < 500; ++i) server_->SetServing(kName, i % 2 == 0);
  for (std::thread& client : clients) client.join();
  HealthCheckResponse response;
  ASSERT_TRUE(Check(kName, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
}

}  // namespace
}  // namespace ridge
