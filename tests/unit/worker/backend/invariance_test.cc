// What a sequence gets depends on it alone: the same tokens and the same bits of every logit, however it is
// batched, cut into chunks, spread over threads or placed in memory.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/schedule_runner.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

// Awkward on purpose: no size is a multiple of a panel, the MLP's K is cut by the other rule, queries share
// KV heads by three.
std::unique_ptr<WeightSource> AwkwardModel() {
  ModelConfig config;
  config.name = "awkward";
  config.architecture = "qwen2";
  config.num_layers = 2;
  config.hidden_size = 88;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.mlp_size = 2100;
  config.vocab_size = 777;
  config.context_length = 512;
  config.qkv_bias = true;
  config.tied_embedding = true;
  return std::make_unique<SyntheticSource>(config, 3);
}

class Invariance : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    source_ =
        name == "awkward" ? AwkwardModel() : OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/" + name).value();
    requests_ = MakeRequests(source_->config().vocab_size);
    one_thread_ = MakeBackend(1);
    expected_ = ScheduleRunner(one_thread_.get(), requests_, {}).Run();
    for (const Answer& answer : expected_) ASSERT_EQ(answer.tokens.size(), static_cast<size_t>(kGenerated));
  }

  std::unique_ptr<CpuBackend> MakeBackend(int threads) {
    auto backend = CpuBackend::Create(*source_, {.threads = threads}).value();
    EXPECT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 64, .max_step_rows = kStepRows}).ok());
    return backend;
  }

  void ExpectSame(Backend* backend, const Schedule& schedule) {
    const std::vector<Answer> answers = ScheduleRunner(backend, requests_, schedule).Run();
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_EQ(answers[i].tokens, expected_[i].tokens)
          << "request " << i << ", batch " << schedule.batch << ", chunk " << schedule.chunk;
      ASSERT_TRUE(answers[i] == expected_[i])
          << "logits of request " << i << ", batch " << schedule.batch << ", chunk " << schedule.chunk;
    }
  }

  std::unique_ptr<WeightSource> source_;
  std::vector<Request> requests_;
  std::unique_ptr<CpuBackend> one_thread_;
  std::vector<Answer> expected_;
};

TEST_P(Invariance, BatchSizeAndBlocks) {
  ExpectSame(one_thread_.get(), {.batch = 1, .seed = 2});
  ExpectSame(one_thread_.get(), {.batch = 3, .seed = 3});
  ExpectSame(one_thread_.get(), {.batch = 64, .seed = 4});
}

TEST_P(Invariance, PrefillChunks) {
  ExpectSame(one_thread_.get(), {.batch = 3, .chunk = 1, .seed = 5});
  ExpectSame(one_thread_.get(), {.batch = 64, .chunk = 7, .seed = 6});
  ExpectSame(one_thread_.get(), {.batch = 3, .chunk = 64, .seed = 7});
}

TEST_P(Invariance, Threads) {
  const std::unique_ptr<CpuBackend> two_threads = MakeBackend(2);
  ExpectSame(two_threads.get(), {.batch = 1, .seed = 8});
  ExpectSame(two_threads.get(), {.batch = 3, .chunk = 7, .seed = 9});
  ExpectSame(two_threads.get(), {.batch = 64, .chunk = 64, .seed = 10});
  EXPECT_EQ(two_threads->Info().numerics_id, one_thread_->Info().numerics_id);
  ExpectSame(MakeBackend(5).get(), {.batch = 64, .chunk = 64, .seed = 11});
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, testing::Values("tiny-llama", "tiny-qwen2", "awkward"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ridge::worker
