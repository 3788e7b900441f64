#include "common/open_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace ridge {
namespace {

using ::testing::HasSubstr;

// Leaves from a thread of its own when it is cut, as a call of gRPC does; or never.
class Call final : public OpenCall {
 public:
  explicit Call(OpenCalls* calls, bool leaves = true) : calls_(calls), leaves_(leaves) {}
  ~Call() {
    if (thread_.joinable()) thread_.join();
  }
  void Cut(const absl::Status& status) override {
    status_ = status;
    if (leaves_) thread_ = std::thread([this] { calls_->Leave(this); });
  }

  absl::Status status_;

 private:
  OpenCalls* const calls_;
  const bool leaves_;
  std::thread thread_;
};

TEST(OpenCallsTest, CountsWhatEnteredAndDidNotLeave) {
  OpenCalls calls;
  Call first(&calls), second(&calls);
  EXPECT_TRUE(calls.Enter(&first));
  EXPECT_TRUE(calls.Enter(&second));
  EXPECT_EQ(calls.count(), 2);
  calls.Leave(&first);
  EXPECT_EQ(calls.count(), 1);
  calls.Leave(&second);
}

TEST(OpenCallsTest, ADrainWaitsForTheLastCallAndRefusesNewOnes) {
  OpenCalls calls;
  Call call(&calls), late(&calls);
  calls.Enter(&call);
  std::thread leaving([&] {
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_FALSE(calls.Enter(&late));
    calls.Leave(&late);
    calls.Leave(&call);
  });
  absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(calls.Drain(absl::Seconds(30), "the server stops"), 0);
  EXPECT_TRUE(call.status_.ok());
  leaving.join();
}

TEST(OpenCallsTest, ADrainThatTakesTooLongCutsTheRestAndSaysSo) {
  OpenCalls calls;
  Call one(&calls), other(&calls);
  calls.Enter(&one);
  calls.Enter(&other);
  EXPECT_EQ(calls.Drain(absl::Milliseconds(10), "the server stops"), 2);
  EXPECT_EQ(calls.count(), 0);
  EXPECT_EQ(one.status_.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(one.status_.message()),
              HasSubstr("the server stops: the stream was still open after 10ms"));
}

TEST(OpenCallsTest, ACallThatDoesNotEndHoldsADrainUpForASecond) {
  OpenCalls calls;
  Call call(&calls, /*leaves=*/false);
  calls.Enter(&call);
  EXPECT_EQ(calls.Drain(absl::ZeroDuration(), "the server stops"), 1);
  EXPECT_EQ(calls.count(), 1);
  calls.Leave(&call);
}

}  // namespace
}  // namespace ridge
