#include "common/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ridge {
namespace {

using ::testing::StartsWith;

const HostPort kAnyPort{"127.0.0.1", 0};

// A client's end. It is made before it connects, so that connecting takes no descriptor.
class Client {
 public:
  Client() : fd_(socket(AF_INET, SOCK_STREAM, 0)) { EXPECT_GE(fd_, 0); }
  ~Client() { close(fd_); }

  bool Connect(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  // Whether the server closed the connection within a second.
  bool IsClosed() {
    const timeval timeout = {1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    char byte;
    const ssize_t got = recv(fd_, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

 private:
  const int fd_;
};

// A limit of open files, for the life of the object.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &old_);
    const rlimit changed{limit, old_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &changed), 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

// All descriptors but those that the limit leaves.
class TakenDescriptors {
 public:
  explicit TakenDescriptors(int stop_at = INT32_MAX) {
    for (int fd; (fd = dup(STDERR_FILENO)) >= 0;) {
      taken_.push_back(fd);
      if (fd >= stop_at) break;
    }
  }
  ~TakenDescriptors() {
    for (const int fd : taken_) close(fd);
  }

 private:
  std::vector<int> taken_;
};

class Accepting {
 public:
  Accepting() : listener_(*Listener::Bind("--listen", kAnyPort)) {
    EXPECT_TRUE(listener_
                    ->Start([this](int fd) {
                      EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
                      close(fd);
                      ++accepted_;
                    })
                    .ok());
  }
  int port() const { return listener_->port(); }
  bool Accepts(int count) const {
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (accepted_ < count && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
    return accepted_ == count;
  }

 private:
  std::atomic<int> accepted_{0};
  std::unique_ptr<Listener> listener_;
};

TEST(ListenerTest, HandsConnectionsOn) {
  Accepting server;
  Client one, other;
  EXPECT_TRUE(one.Connect(server.port()));
  EXPECT_TRUE(other.Connect(server.port()));
  EXPECT_TRUE(server.Accepts(2));
}

TEST(ListenerTest, RefusesConnectionsBeforeStartAndAfterStop) {
  const auto listener = *Listener::Bind("--listen", kAnyPort);
  Client early, in_time, late;
  EXPECT_FALSE(early.Connect(listener->port()));
  ASSERT_TRUE(listener->Start([](int fd) { close(fd); }).ok());
  EXPECT_TRUE(in_time.Connect(listener->port()));
  listener->Stop();
  EXPECT_FALSE(late.Connect(listener->port()));
  listener->Stop();
}

TEST(ListenerTest, ATakenPortNamesFlagAddressAndReason) {
  Accepting server;
  const absl::Status status = Listener::Bind("--listen", {"127.0.0.1", server.port()}).status();
  EXPECT_EQ(status.message(),
            absl::StrCat("--listen: cannot listen on 127.0.0.1:", server.port(), ": Address already in use"));
}

TEST(ListenerTest, AnAddressThatIsNotThisMachinesNamesItself) {
  EXPECT_THAT(std::string(Listener::Bind("--listen", {"192.0.2.1", 0}).status().message()),
              StartsWith("--listen: cannot listen on 192.0.2.1:0: "));
  EXPECT_THAT(std::string(Listener::Bind("--listen", {"no-such-host.invalid", 0}).status().message()),
              StartsWith("--listen: cannot listen on no-such-host.invalid:0: "));
}

TEST(ListenerTest, GoesOnAfterDescriptorsHaveRunOut) {
  Accepting server;
  Client waiting;
  const DescriptorLimit limit(200);
  {
    const TakenDescriptors all;
    EXPECT_TRUE(waiting.Connect(server.port()));  // the kernel's part
    absl::SleepFor(absl::Milliseconds(30));
    EXPECT_TRUE(server.Accepts(0));
  }
  EXPECT_TRUE(server.Accepts(1));
  Client next;
  EXPECT_TRUE(next.Connect(server.port()));
  EXPECT_TRUE(server.Accepts(2));
}

TEST(ListenerTest, KeepsSomeDescriptorsForTheRestOfTheProcess) {
  Accepting server;
  Client one_too_many;
  const DescriptorLimit limit(200);
  {
    const TakenDescriptors most(160);  // a quarter of 200 is reserved
    EXPECT_TRUE(one_too_many.Connect(server.port()));
    EXPECT_TRUE(one_too_many.IsClosed());
    EXPECT_TRUE(server.Accepts(0));
  }
  Client next;
  EXPECT_TRUE(next.Connect(server.port()));
  EXPECT_TRUE(server.Accepts(1));
}

}  // namespace
}  // namespace ridge
