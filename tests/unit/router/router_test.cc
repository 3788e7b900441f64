#include "router/router.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/unit/router/fake_worker.h"

namespace ridge::router {
namespace {

using ::testing::HasSubstr;
using HealthResponse = grpc::health::v1::HealthCheckResponse;

RouterConfig Config(const std::string& worker) {
  RouterConfig config;
  config.listen = "127.0.0.1:0";
  config.metrics_port = -1;
  config.workers = {worker};
  return config;
}

std::shared_ptr<grpc::Channel> ChannelTo(const Router& router) {
  return grpc::CreateChannel(absl::StrCat("127.0.0.1:", router.grpc_port()),
                             grpc::InsecureChannelCredentials());
}

HealthResponse::ServingStatus Health(const std::shared_ptr<grpc::Channel>& channel,
                                     const std::string& service) {
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthResponse response;
  grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response);
  return response.status();
}

bool BecomesHealthy(const std::shared_ptr<grpc::Channel>& channel, HealthResponse::ServingStatus wanted) {
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (Health(channel, "ridge.v1.Inference") != wanted) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

TEST(RouterTest, ServesOnceAWorkerIsUp) {
  FakeWorker worker(
      [](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  worker.Stop();
  const auto router = *Router::Start(Config(worker.address()));
  const auto channel = ChannelTo(*router);
  EXPECT_EQ(Health(channel, ""), HealthResponse::SERVING);
  EXPECT_EQ(Health(channel, "ridge.v1.Inference"), HealthResponse::NOT_SERVING);
  worker.Restart();
  EXPECT_TRUE(BecomesHealthy(channel, HealthResponse::SERVING));
  worker.Stop();
  EXPECT_TRUE(BecomesHealthy(channel, HealthResponse::NOT_SERVING));
}

TEST(RouterTest, DrainLetsOpenStreamsCompleteAndTakesNoMore) {
  absl::Notification finish;
  FakeWorker worker([&finish](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    writer->Write(TokenMessage(0));
    finish.WaitForNotification();
    writer->Write(TokenMessage(1));
    return grpc::Status::OK;
  });
  const auto router = *Router::Start(Config(worker.address()));
  const auto channel = ChannelTo(*router);
  ASSERT_TRUE(BecomesHealthy(channel, HealthResponse::SERVING));
  const auto stub = v1::Inference::NewStub(channel);

  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, v1::GenerateRequest());
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));

  std::thread drain([&router] { EXPECT_EQ(router->Drain(), 0); });
  // From the moment the drain began a call is refused, and health says so; one before that waits for
  // `finish`.
  EXPECT_TRUE(BecomesHealthy(channel, HealthResponse::NOT_SERVING));
  EXPECT_EQ(Health(channel, ""), HealthResponse::SERVING);
  grpc::Status refused;
  do {
    grpc::ClientContext late;
    late.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(50)));
    const auto call = stub->Generate(&late, v1::GenerateRequest());
    refused = call->Finish();
  } while (refused.error_code() != grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused.error_message(), "the router is draining");

  finish.Notify();
  EXPECT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.sequence_number(), 1u);
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_TRUE(reader->Finish().ok());
  drain.join();
}

TEST(RouterTest, DrainEndsStreamsThatOutliveTheTimeout) {
  FakeWorker worker([](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    writer->Write(TokenMessage(0));
    WaitForCancellation(context);
    return grpc::Status::CANCELLED;
  });
  RouterConfig config = Config(worker.address());
  config.drain_timeout = absl::Milliseconds(100);
  const auto router = *Router::Start(config);
  const auto channel = ChannelTo(*router);
  ASSERT_TRUE(BecomesHealthy(channel, HealthResponse::SERVING));
  grpc::ClientContext context;
  const auto reader = v1::Inference::NewStub(channel)->Generate(&context, v1::GenerateRequest());
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(router->Drain(), 1);
  EXPECT_FALSE(reader->Read(&message));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the router stops: the stream was still open after 100ms");
}

TEST(RouterTest, APortThatIsTakenIsNamedByItsFlag) {
  RouterConfig config = Config("127.0.0.1:1");
  config.metrics_port = 0;
  const auto first = *Router::Start(config);
  config.listen = absl::StrCat("127.0.0.1:", first->grpc_port());
  EXPECT_THAT(std::string(Router::Start(config).status().message()), HasSubstr("--listen"));
  config.listen = "127.0.0.1:0";
  config.metrics_port = first->metrics_port();
  EXPECT_THAT(std::string(Router::Start(config).status().message()), HasSubstr("--metrics_port"));
}

TEST(RouterTest, MetricsPortCanBeLeftOut) {
  EXPECT_EQ((*Router::Start(Config("127.0.0.1:1")))->metrics_port(), -1);
}

}  // namespace
}  // namespace ridge::router
