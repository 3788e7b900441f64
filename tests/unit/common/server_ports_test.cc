#include "common/server_ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/grpc_channel.h"
#include "grpcpp/create_channel.h"

namespace ridge {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ServerPortsTest : public ::testing::Test {
 protected:
  ServerPortsTest() {
    options_.http.metrics = &metrics_;
    options_.http.ready = [] { return true; };
    options_.http.status = [] { return std::string("fine\n"); };
  }

  std::string ErrorOf(const ServerPortsOptions& options) {
    return std::string(ServerPorts::Open(options).status().message());
  }

  MetricsRegistry metrics_;
  ServerPortsOptions options_;
};

TEST_F(ServerPortsTest, BothPortsAreTakenBeforeAnythingIsServed) {
  const auto ports = ServerPorts::Open(options_).value();
  EXPECT_EQ(ports->Describe(), absl::StrCat("gRPC on 127.0.0.1:", ports->grpc_port(),
                                            ", metrics on 127.0.0.1:", ports->metrics_port()));
  const auto channel =
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", ports->grpc_port()),
                                grpc::InsecureChannelCredentials(), DirectChannelArguments());
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  const auto check = [&](bool wait) {
    grpc::ClientContext context;
    context.set_wait_for_ready(wait);
    grpc::health::v1::HealthCheckResponse response;
    return stub->Check(&context, {}, &response).error_code();
  };
  EXPECT_EQ(check(false), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(ports->Serve({}).ok());
  EXPECT_EQ(check(true), grpc::StatusCode::OK);

  ServerPortsOptions taken = options_;
  taken.metrics_port = ports->metrics_port();
  EXPECT_THAT(ErrorOf(taken), StartsWith("--metrics_port: cannot listen on "));
  taken = options_;
  taken.grpc.listen = absl::StrCat("127.0.0.1:", ports->grpc_port());
  EXPECT_THAT(ErrorOf(taken), StartsWith("--listen: cannot listen on "));
}

TEST_F(ServerPortsTest, OnePortForBothIsNamedAsThat) {
  options_.grpc.listen = "127.0.0.1:50987";
  options_.metrics_port = 50987;
  EXPECT_EQ(ErrorOf(options_), "--metrics_port: 50987 is the port of --listen");
}

TEST_F(ServerPortsTest, WithoutAMetricsPortThereIsNone) {
  options_.metrics_port = -1;
  const auto ports = ServerPorts::Open(options_).value();
  EXPECT_EQ(ports->metrics_port(), -1);
  EXPECT_THAT(ports->Describe(), HasSubstr(", metrics on none"));
}

TEST_F(ServerPortsTest, AnIpv6HostIsNotForTheHttpPort) {
  options_.grpc.listen = "[::1]:0";
  const std::string error = ErrorOf(options_);
  // Where the machine has no IPv6, the gRPC port is the first to fail.
  if (absl::StrContains(error, "--listen")) GTEST_SKIP() << error;
  EXPECT_THAT(error, StartsWith("--metrics_port: the HTTP port takes no IPv6 host (::1)"));
  options_.metrics_port = -1;
  const auto ports = ServerPorts::Open(options_).value();
  EXPECT_EQ(ports->Describe(), absl::StrCat("gRPC on [::1]:", ports->grpc_port(), ", metrics on none"));
}

}  // namespace
}  // namespace ridge
