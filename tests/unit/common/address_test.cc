#include "common/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ridge {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(AddressTest, ReadsNamesAddressesAndIpv6) {
  EXPECT_EQ(ParseHostPort("--listen", "127.0.0.1:0", 0)->host, "127.0.0.1");
  EXPECT_EQ(ParseHostPort("--listen", "worker-2.internal:50051", 1)->port, 50051);
  EXPECT_EQ(ParseHostPort("--listen", "[::1]:65535", 1)->host, "::1");
  EXPECT_EQ(ParseHostPort("--listen", "[fe80::1%eth0]:1", 1)->host, "fe80::1%eth0");
}

TEST(AddressTest, IsWrittenAsItIsRead) {
  for (const char* text : {"127.0.0.1:0", "localhost:50051", "[::1]:9"}) {
    EXPECT_EQ(ToString(*ParseHostPort("--listen", text, 0)), text);
  }
}

TEST(AddressTest, AnythingElseNamesFlagAndText) {
  for (const char* text : {"", "127.0.0.1", ":50051", "50051", "a:", " b:2", "b:2 ", "b: 2", "http://a:1",
                           "a/b:1", "::1:50051", "[]:1", "[a]:1", "a:+1", "a:-1", "a:0x10", "a,b:1"}) {
    const absl::Status status = ParseHostPort("--workers", text, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith(std::string("--workers: \"") + text + "\""))
        << text;
  }
}

TEST(AddressTest, APortOutOfRangeIsCalledThat) {
  for (const char* text : {"127.0.0.1:80000", "127.0.0.1:0", "127.0.0.1:99999999999999999999"}) {
    EXPECT_THAT(std::string(ParseHostPort("--workers", text, 1).status().message()),
                HasSubstr("is not in 1 to 65535"));
  }
}

}  // namespace
}  // namespace ridge
