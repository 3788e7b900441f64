// The whole engine on a card: what a request gets depends on it alone, and memory stays what it was.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/golden_file.h"
#include "tests/unit/worker/loop/same_tokens.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

using same_tokens::Answer;
using same_tokens::Request;
using same_tokens::Setting;

size_t FreeBytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

class CudaEngine : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    source_ = OpenModel(DataDirectory() + "/" + GetParam()).value();
    requests_ = same_tokens::RequestMaker(source_->config().vocab_size).Make(200);
  }

  std::unique_ptr<CudaBackend> MakeBackend(const Setting& setting) {
    auto backend =
        CudaBackend::Create(*source_, {.graphs = setting.policy.launch == LaunchPolicy::kGraph}).value();
    EXPECT_TRUE(backend->Reserve(setting.num_blocks, {setting.max_running, setting.step_tokens}).ok());
    if (!backend->Info().extended_sampling) MakePlain();
    return backend;
  }

  // Leaves what the backend can do.
  void MakePlain() {
    for (Request& request : requests_) {
      request.num_choices = 1;
      SequenceSpec& spec = request.spec;
      spec.controls = {};
      spec.bans = nullptr;
      spec.prompt_logprobs = false;
      spec.sampling.top_logprobs = spec.sampling.prompt_top_logprobs = 0;
      spec.sampling.repetition_penalty = 1.0f;
      spec.sampling.presence_penalty = spec.sampling.frequency_penalty = 0.0f;
    }
  }

  std::unique_ptr<WeightSource> source_;
  std::vector<Request> requests_;
};

TEST_P(CudaEngine, WhatARequestGetsDependsOnItAlone) {
  std::vector<Setting> settings = {{"64 at once", 64, 512, 512},
                                   {"a small pool", 16, 128, 64, {}, 4, false, 30},
                                   {"chunks of 1", 64, 128, 1},
                                   {"chunks of 7", 64, 128, 7, {}, 5},
                                   {"another order", 64, 512, 512, {}, 7},
                                   {"a small budget", 16, 17, 17, {}, 8}};
  for (const std::string& preset : PresetNames())
    settings.push_back({preset.c_str(), 8, 512, 64, PresetPolicy(preset), 3});
  const std::vector<Answer> alone = same_tokens::Alone(MakeBackend({"alone", 1, 512, 512}).get(), requests_);
  for (const Setting& setting : settings) {
    const std::vector<Answer> together =
        same_tokens::Run(MakeBackend(setting).get(), requests_, setting).Finish();
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_EQ(together[i], alone[i]) << setting.name << ", request " << i;
  }
}

TEST_P(CudaEngine, AThousandRequestsLeaveExactlyTheMemoryOfTheFirst) {
  const std::unique_ptr<CudaBackend> backend = MakeBackend({"64 at once", 64, 512, 64});
  FakeClock clock;
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  int64_t ended = 0;
  EngineCore core({.num_blocks = 600,
                   .max_running = 64,
                   .step_tokens = 512,
                   .chunk_tokens = 64,
                   .max_context = same_tokens::kContext},
                  backend.get(), &clock, &metrics, [&](const std::vector<OutputItem>& items) {
                    for (const OutputItem& item : items) ended += item.has_end;
                  });
  const auto run_all = [&] {
    for (size_t i = 0; i < requests_.size(); ++i) {
      std::vector<std::unique_ptr<Sequence>> choices;
      choices.push_back(std::make_unique<Sequence>());
      choices[0]->id = static_cast<SequenceId>(ended + static_cast<int64_t>(i) + 1);
      choices[0]->spec = requests_[i].spec;
      choices[0]->output = std::make_shared<OutputStream>();
      core.Add(std::move(choices));
    }
    while (core.RunOnce().value()) {
    }
  };
  run_all();  // requests of every kind: CUDA loads a kernel's code when it first runs
  const size_t free = FreeBytes();
  for (int i = 0; i < 5; ++i) run_all();
  EXPECT_EQ(FreeBytes(), free);
  EXPECT_EQ(ended, 6 * static_cast<int64_t>(requests_.size()));
}

TEST_P(CudaEngine, KvMemoryIsWhatIsLeft) {
  const std::unique_ptr<CudaBackend> backend = CudaBackend::Create(*source_, {}).value();
  const BackendLimits limits{64, 512};
  const int32_t blocks = backend->DefaultBlocks(limits).value();
  ASSERT_TRUE(backend->Reserve(blocks, limits).ok());
  const auto free = static_cast<int64_t>(FreeBytes());
  std::printf("%d blocks, %lld MiB free\n", blocks, static_cast<long long>(free >> 20));
  EXPECT_GT(free, CudaBackend::kMemoryMargin / 2);
  EXPECT_LT(free, CudaBackend::kMemoryMargin * 2);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaEngine, ::testing::Values("tiny-llama", "tiny-qwen2"),
                         [](const auto& test) { return std::string(test.param).substr(5); });

}  // namespace
}  // namespace ridge::worker
