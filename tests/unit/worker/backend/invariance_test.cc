// What a sequence gets depends on it alone: the same tokens and the same bits of every logit, however it is
// batched, cut into chunks, spread over threads or placed in memory.
#include <bit>
#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

constexpr int32_t kNumRequests = 64;
constexpr int32_t kGenerated = 6;
constexpr int32_t kStepRows = 1024;
constexpr int32_t kNumBlocks = 1024;

struct Request {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<uint32_t> logits;  // their bits, of every token, one after the other

  bool operator==(const Answer&) const = default;
};

struct Schedule {
  int32_t batch = 1;       // sequences that run at once
  int32_t chunk = 100000;  // most rows of a prefill in one step
  uint32_t seed = 1;       // of the order of arrival and of the block ids
};

// Prompts of 1 to 400 tokens, the long ones rare; every third request greedy, the others sampled in different
// ways.
std::vector<Request> MakeRequests(int32_t vocab_size) {
  std::mt19937 random(7);
  std::vector<Request> requests(kNumRequests);
  for (int32_t i = 0; i < kNumRequests; ++i) {
    const int32_t length =
        i % 16 == 5 ? 250 + static_cast<int32_t>(random() % 150) : 1 + static_cast<int32_t>(random() % 40);
    for (int32_t t = 0; t < length; ++t) {
      requests[i].prompt.push_back(static_cast<TokenId>(random() % static_cast<uint32_t>(vocab_size)));
    }
    SamplingParams& sampling = requests[i].sampling;
    sampling.temperature = i % 3 == 0 ? 0.0f : 0.7f + 0.1f * static_cast<float>(i % 5);
    if (i % 4 == 1) sampling.top_k = 20;
    if (i % 4 == 2) sampling.top_p = 0.9f;
    if (i % 5 == 1) sampling.min_p = 0.05f;
    sampling.seed = 1000 + static_cast<uint64_t>(i);
    sampling.logprobs = i % 2 == 0;
  }
  return requests;
}

// Continuous batching in its plainest form: decode rows and prefill chunks share every step.
class Runner {
 public:
  Runner(Backend* backend, const std::vector<Request>& requests, const Schedule& schedule)
      : requests_(requests),
        schedule_(schedule),
        driver_(backend, kNumBlocks, schedule.seed),
        answers_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) order_.push_back(i);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(schedule.seed));
    slots_.resize(static_cast<size_t>(schedule.batch));
  }

  std::vector<Answer> Run() {
    while (finished_ < requests_.size()) Step();
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].used) driver_.Release(static_cast<SlotId>(slot));
    }
    driver_.Run();
    return std::move(answers_);
  }

 private:
  struct SlotUse {
    bool used = false;
    bool done = false;
    size_t request = 0;
    size_t prefilled = 0;
  };

  void Step() {
    std::vector<size_t> outputs;  // requests, in the order of output rows
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      Refill(slot);
      if (slots_[slot].used && !slots_[slot].done) AddRows(slot, &outputs);
    }
    const StepResult result = driver_.Run(true);
    ASSERT_EQ(result.outputs.size(), outputs.size());
    const size_t vocab = outputs.empty() ? 0 : result.logits.size() / outputs.size();
    for (size_t i = 0; i < outputs.size(); ++i) {
      Answer& answer = answers_[outputs[i]];
      answer.tokens.push_back(result.outputs[i].token);
      answer.logprobs.push_back(result.outputs[i].logprob);
      const auto logits = result.logits.begin() + static_cast<int64_t>(i * vocab);
      std::transform(logits, logits + static_cast<int64_t>(vocab), std::back_inserter(answer.logits),
                     std::bit_cast<uint32_t, float>);
    }
    for (SlotUse& use : slots_) {
      if (!use.used || use.done || answers_[use.request].tokens.size() < kGenerated) continue;
      use.done = true;
      ++finished_;
    }
  }

  void Refill(size_t slot) {
    SlotUse& use = slots_[slot];
    if (use.used && !use.done) return;
    if (next_ == order_.size()) return;
    if (use.used) driver_.Release(static_cast<SlotId>(slot));
    use = {.used = true, .request = order_[next_++]};
    driver_.Attach(static_cast<SlotId>(slot), requests_[use.request].sampling);
  }

  void AddRows(size_t slot, std::vector<size_t>* outputs) {
    SlotUse& use = slots_[slot];
    const std::vector<TokenId>& prompt = requests_[use.request].prompt;
    const int32_t room = kStepRows - driver_.planned_rows();
    if (room <= 0) return;
    if (use.prefilled == prompt.size()) {
      driver_.AddDecodeRow(static_cast<SlotId>(slot));
      outputs->push_back(use.request);
      return;
    }
    const int32_t rows =
        std::min({schedule_.chunk, static_cast<int32_t>(prompt.size() - use.prefilled), room});
    const auto begin = prompt.begin() + static_cast<int64_t>(use.prefilled);
    use.prefilled += static_cast<size_t>(rows);
    const bool last = use.prefilled == prompt.size();
    driver_.AddRows(static_cast<SlotId>(slot), std::vector<TokenId>(begin, begin + rows), last ? 1 : 0);
    if (last) outputs->push_back(use.request);
  }

  const std::vector<Request>& requests_;
  const Schedule schedule_;
  StepDriver driver_;
  std::vector<size_t> order_;
  size_t next_ = 0;
  size_t finished_ = 0;
  std::vector<SlotUse> slots_;
  std::vector<Answer> answers_;
};

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
    expected_ = Runner(one_thread_.get(), requests_, {}).Run();
    for (const Answer& answer : expected_) ASSERT_EQ(answer.tokens.size(), static_cast<size_t>(kGenerated));
  }

  std::unique_ptr<CpuBackend> MakeBackend(int threads) {
    auto backend = CpuBackend::Create(*source_, {.threads = threads}).value();
    EXPECT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 64, .max_step_rows = kStepRows}).ok());
    return backend;
  }

  void ExpectSame(Backend* backend, const Schedule& schedule) {
    const std::vector<Answer> answers = Runner(backend, requests_, schedule).Run();
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
