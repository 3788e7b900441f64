#include "router/router_config.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::router {
namespace {

using ::testing::StartsWith;

RouterConfig Valid() {
  RouterConfig config;
  config.workers = {"127.0.0.1:50051", "worker-2.internal:50051"};
  return config;
}

TEST(RouterConfigTest, DefaultsWithWorkersAreValid) {
  EXPECT_TRUE(Validate(Valid()).ok());
}

struct BadValue {
  const char* flag;
  std::function<void(RouterConfig*)> spoil;
};

TEST(RouterConfigTest, ABadValueNamesItsFlag) {
  const BadValue bad_values[] = {
      {"--listen: ", [](RouterConfig* c) { c->listen = "50050"; }},
      {"--listen: ", [](RouterConfig* c) { c->listen = ":50050"; }},
      {"--listen: ", [](RouterConfig* c) { c->listen = "127.0.0.1:65536"; }},
      {"--workers: ", [](RouterConfig* c) { c->workers.clear(); }},
      {"--workers: ", [](RouterConfig* c) { c->workers = {"127.0.0.1"}; }},
      {"--workers: ", [](RouterConfig* c) { c->workers = {"127.0.0.1:0"}; }},
      {"--workers: \" b:2\"",
       [](RouterConfig* c) {
         c->workers = {"a:1", " b:2"};
       }},
      {"--workers: \"http://a:1\"", [](RouterConfig* c) { c->workers = {"http://a:1"}; }},
      {"--workers: ",
       [](RouterConfig* c) {
         c->workers = {"a:1", "b:1", "a:1"};
       }},
      {"--metrics_port: ", [](RouterConfig* c) { c->metrics_port = 70000; }},
      {"--metrics_port: ", [](RouterConfig* c) { c->metrics_port = -2; }},
      {"--max_message_bytes: ", [](RouterConfig* c) { c->max_message_bytes = 100; }},
      {"--max_message_bytes: ", [](RouterConfig* c) { c->max_message_bytes = int64_t{2} << 30; }},
      {"--log_level: ", [](RouterConfig* c) { c->log_level = "loud"; }},
      {"--drain_timeout: ", [](RouterConfig* c) { c->drain_timeout = absl::Seconds(-1); }},
      {"--connect_timeout: ", [](RouterConfig* c) { c->connect_timeout = absl::ZeroDuration(); }},
      {"--report_timeout: ", [](RouterConfig* c) { c->report_timeout = absl::Milliseconds(500); }},
  };
  for (const BadValue& bad : bad_values) {
    RouterConfig config = Valid();
    bad.spoil(&config);
    const absl::Status status = Validate(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.flag;
    EXPECT_THAT(std::string(status.message()), StartsWith(bad.flag));
  }
}

}  // namespace
}  // namespace ridge::router
