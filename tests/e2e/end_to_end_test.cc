// A worker and a router, as a client sees them.

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/client.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

const std::vector<int32_t> kPrompt = {71, 5, 301, 17, 250, 9};

// One worker with a long context behind one router.
class EndToEndTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::string> model = WriteLongContextModel(::testing::TempDir());
    ASSERT_TRUE(model.ok()) << model.status();
    absl::StatusOr<Server> worker = StartWorker({"--model", *model, "--kv-cache-bytes", "64MiB"});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    absl::StatusOr<Server> router = StartRouter({worker_.grpc});
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
  }

  Server worker_;
  Server router_;
};

TEST_F(EndToEndTest, TheRouterStreamsTheWorkersTokens) {
  v1::GenerateRequest request = GreedyRequest(kPrompt, 200);
  request.set_logprobs(0);
  const Answer direct = Client(worker_.grpc).Ask(request);
  const Answer relayed = Client(router_.grpc).Ask(request);
  ASSERT_TRUE(direct.status.ok()) << Describe(direct.status);
  ASSERT_TRUE(relayed.status.ok()) << Describe(relayed.status);
  EXPECT_EQ(direct.ids.size(), 200u);
  EXPECT_EQ(relayed.ids, direct.ids);
  EXPECT_EQ(relayed.logprobs, direct.logprobs);
  EXPECT_EQ(direct.logprobs.size(), 200u);
  EXPECT_EQ(relayed.summary->choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(relayed.summary->usage().prompt_tokens(), static_cast<int32_t>(kPrompt.size()));
  EXPECT_EQ(relayed.summary->numerics_id(), direct.summary->numerics_id());
}

}  // namespace
}  // namespace ridge::testing
