// What a request gets depends on the request alone: the whole engine on the CPU backend, under settings and
// company that must not matter, bit for bit.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/loop/same_tokens.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

using same_tokens::Answer;
using same_tokens::Counts;
using same_tokens::Request;
using same_tokens::Setting;

std::unique_ptr<CpuBackend> MakeBackend(const WeightSource& source, const Setting& setting, int threads) {
  std::unique_ptr<CpuBackend> backend = CpuBackend::Create(source, {.threads = threads}).value();
  EXPECT_TRUE(backend->Reserve(setting.num_blocks, {setting.max_running, setting.step_tokens}).ok());
  return backend;
}

class EngineInvariance : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    source_ = OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/" + GetParam()).value();
    requests_ = same_tokens::RequestMaker(source_->config().vocab_size).Make(200);
    alone_ = same_tokens::Alone(MakeBackend(*source_, {"alone", 1, 512, 512}, 1).get(), requests_);
  }

  Counts ExpectTheSame(const Setting& setting, int threads) {
    const std::unique_ptr<CpuBackend> backend = MakeBackend(*source_, setting, threads);
    same_tokens::Run run(backend.get(), requests_, setting);
    const std::vector<Answer> together = run.Finish();
    for (size_t i = 0; i < alone_.size(); ++i)
      EXPECT_EQ(together[i], alone_[i]) << setting.name << ", request " << i;
    return run.counts();
  }

  std::unique_ptr<WeightSource> source_;
  std::vector<Request> requests_;
  std::vector<Answer> alone_;
};

TEST_P(EngineInvariance, TokensAndLogprobsDependOnTheRequestAlone) {
  for (size_t i = 0; i < alone_.size(); ++i) {
    for (const auto& choice : alone_[i].choices) ASSERT_FALSE(choice.empty());
    ASSERT_EQ(alone_[i].prompt.size(),
              requests_[i].spec.prompt_logprobs ? requests_[i].spec.prompt.size() - 1 : 0);
  }
  const EnginePolicy stream{.launch = LaunchPolicy::kStream};
  const EnginePolicy no_cache{.prefix_cache = false};
  EXPECT_GT(ExpectTheSame({"64 at once", 64, 512, 512}, 2).prefix_hits, 1000);
  EXPECT_EQ(ExpectTheSame({"without a prefix cache", 64, 512, 512, no_cache}, 2).prefix_hits, 0);
  EXPECT_GT(ExpectTheSame({"a small pool", 16, 128, 64, {}, 4, false, 30}, 2).preemptions, 10);
  for (const Setting& setting :
       {Setting{"three at once", 3, 512, 512}, Setting{"chunks of 1", 64, 128, 1},
        Setting{"chunks of 7", 64, 128, 7, {}, 5}, Setting{"another order", 64, 512, 512, {}, 7},
        Setting{"a small budget", 16, 17, 17, {}, 8}, Setting{"one step at a time", 64, 512, 512, stream, 9}})
    ExpectTheSame(setting, 2);
  ExpectTheSame({"one thread", 64, 128, 64}, 1);
}

TEST_P(EngineInvariance, EveryPresetGivesTheSame) {
  for (const std::string& preset : PresetNames())
    ExpectTheSame({preset.c_str(), 8, 512, 64, PresetPolicy(preset), 3}, 2);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineInvariance, ::testing::Values("tiny-llama", "tiny-qwen2"));

}  // namespace
}  // namespace ridge::worker
