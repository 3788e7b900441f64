#include "common/http_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ridge {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A client's connection that has sent `text`.
class Connection {
 public:
  Connection(int port, const std::string& text) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
               write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_open() const { return is_open_; }

  // Says that no more comes, and waits for all that the server says.
  std::string Answer() {
    std::string answer;
    if (!is_open_) return answer;
    shutdown(fd_, SHUT_WR);
    char buffer[4096];
    for (ssize_t size; (size = read(fd_, buffer, sizeof(buffer))) > 0;) answer.append(buffer, size);
    return answer;
  }

 private:
  const int fd_;
  bool is_open_ = false;
};

// Sends one request and returns the whole answer, headers and all.
std::string Exchange(int port, const std::string& request) {
  return Connection(port, request).Answer();
}

class HttpPortTest : public testing::Test {
 protected:
  HttpPortTest() {
    HttpPortOptions options;
    options.metrics = &metrics_;
    options.ready = [this] { return ready_.load(); };
    options.status = [] { return std::string("version 7\n"); };
    options_ = options;
    port_ = HttpPort::Start(options).value();
  }

  std::string Ask(const std::string& method, const std::string& path) {
    return Exchange(port_->port(), absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  }

  MetricsRegistry metrics_;
  std::atomic<bool> ready_{false};
  HttpPortOptions options_;
  std::unique_ptr<HttpPort> port_;
};

TEST_F(HttpPortTest, ServesMetricsInPrometheusFormat) {
  metrics_.Counter("events_total", "Events.").Increment(4);
  EXPECT_THAT(Ask("GET", "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Type: text/plain; version=0.0.4"),
                    EndsWith("events_total 4\n")));
}

TEST_F(HttpPortTest, HealthIsAlwaysFineAndReadinessFollowsTheCallback) {
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("GET", "/readyz"), StartsWith("HTTP/1.1 503 "));
  ready_ = true;
  EXPECT_THAT(Ask("GET", "/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("GET", "/readyz?verbose=1"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpPortTest, StatusIsTheCallbacksText) {
  EXPECT_THAT(Ask("GET", "/statusz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nversion 7\n")));
}

TEST_F(HttpPortTest, HeadHasNoBody) {
  EXPECT_THAT(Ask("HEAD", "/statusz"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Length: 10\r\n"), EndsWith("\r\n\r\n")));
}

TEST_F(HttpPortTest, OtherPathsAndMethodsAreRefused) {
  EXPECT_THAT(Ask("GET", "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("GET", "/metrics/more"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("GET", "/../etc/passwd"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST", "/metrics"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
  EXPECT_THAT(Ask("DELETE", "/metrics"), StartsWith("HTTP/1.1 405 "));
}

TEST_F(HttpPortTest, GarbageDoesNotStopTheServer) {
  Exchange(port_->port(), "not http at all\r\n\r\n");
  Exchange(port_->port(), "");
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpPortTest, AnswersManyClientsAtOnce) {
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int j = 0; j < 5; ++j) answered += absl::StartsWith(Ask("GET", "/metrics"), "HTTP/1.1 200 ");
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 40);
}

// What a probe waits for while `count` clients have sent `text` and nothing more.
class StalledClientsTest : public HttpPortTest {
 protected:
  void ExpectAnAnswerWithinASecond(int count, const std::string& text) {
    std::vector<std::unique_ptr<Connection>> stalled;
    for (int i = 0; i < count; ++i) {
      stalled.push_back(std::make_unique<Connection>(port_->port(), text));
      ASSERT_TRUE(stalled.back()->is_open());
    }
    const absl::Time begin = absl::Now();
    EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  }
};

TEST_F(StalledClientsTest, FiftyThatSayNothingKeepNoProbeWaiting) {
  ExpectAnAnswerWithinASecond(50, "");
}

TEST_F(StalledClientsTest, HalfRequestsKeepNoProbeWaiting) {
  ExpectAnAnswerWithinASecond(8, "GET /metrics HTTP/1.1\r\nHost: loc");
}

TEST_F(HttpPortTest, ATakenPortIsAnErrorThatNamesFlagAndAddress) {
  options_.port = port_->port();
  const absl::Status status = HttpPort::Start(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              StartsWith(absl::StrCat("--metrics_port: cannot listen on 127.0.0.1:", port_->port())));
}

TEST_F(HttpPortTest, ThePortIsFreeAgainAfterDestruction) {
  const int port = port_->port();
  EXPECT_GT(port, 0);
  port_.reset();
  EXPECT_EQ(Exchange(port, "GET /healthz HTTP/1.1\r\n\r\n"), "");
}

}  // namespace
}  // namespace ridge
