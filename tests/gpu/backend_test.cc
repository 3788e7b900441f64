// The CUDA backend: close to the CPU's on real checkpoints, and the same bits for a sequence whatever runs
// beside it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/hash.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/backend/extended_sampling.h"
#include "tests/unit/worker/backend/golden_checks.h"
#include "tests/unit/worker/backend/schedule_runner.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "tests/unit/worker/loop/same_tokens.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

// Small, with sizes that are no multiple of a tile or a chunk: queries share KV heads by three, the MLP's K
// is cut by the rule for long rows.
ModelConfig AwkwardConfig() {
  ModelConfig config;
  config.name = "awkward";
  config.num_layers = 2;
  config.hidden_size = 80;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.mlp_size = 2096;
  config.vocab_size = 777;
  config.context_length = 512;
  config.norm_eps = 1e-5f;
  config.qkv_bias = true;
  config.tied_embedding = true;
  return config;
}

std::unique_ptr<WeightSource> MakeSource(const std::string& name) {
  if (name == "smollm2") return OpenModel(std::getenv("RIDGE_TEST_MODEL")).value();
  if (name == "awkward") return std::make_unique<SyntheticSource>(AwkwardConfig(), 3);
  if (name == "qwen2.5-1.5b, 2 layers") {
    ModelConfig config = OpenModel("synthetic:qwen2.5-1.5b").value()->config();
    config.num_layers = 2;
    config.vocab_size = 4096;
    config.context_length = 2048;
    return std::make_unique<SyntheticSource>(config);
  }
  return OpenModel(DataDirectory() + "/" + name).value();
}

class CudaBackendTest : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int32_t kNumBlocks = 1024;
  static constexpr int32_t kMaxRows = 1024;

  void SetUp() override {
    if (std::string(GetParam()) == "smollm2" && std::getenv("RIDGE_TEST_MODEL") == nullptr) {
      GTEST_SKIP() << "RIDGE_TEST_MODEL does not name SmolLM2's file";
    }
    source_ = MakeSource(GetParam());
  }

  std::unique_ptr<CudaBackend> MakeBackend(bool graphs = true) {
    auto backend = CudaBackend::Create(*source_, {.graphs = graphs});
    EXPECT_TRUE(backend.ok()) << backend.status();
    EXPECT_TRUE((*backend)->Reserve(kNumBlocks, {.max_slots = 64, .max_step_rows = kMaxRows}).ok());
    return *std::move(backend);
  }

  std::unique_ptr<WeightSource> source_;
};

// Prompts whose logits are compared. Random ids are none of a trained model's business: on single rows of
// those SmolLM2 answers to any rounding with 0.1 and more, on the CPU too.
std::vector<std::vector<TokenId>> Prompts(const WeightSource& source, const std::string& name) {
  const size_t longest = static_cast<size_t>(std::min(400, source.config().context_length));
  std::vector<std::vector<TokenId>> prompts;
  if (name == "smollm2") {
    const nlohmann::json golden = ReadGolden("smollm2-135m/golden_fp16w.json");
    for (const nlohmann::json& recorded : golden["cases"]) {
      prompts.push_back(recorded["prompt_ids"]);
      prompts.back().resize(std::min(prompts.back().size(), longest));
    }
    return prompts;
  }
  std::mt19937 random(11);
  for (TokenId& token : prompts.emplace_back(longest))
    token = static_cast<TokenId>(random() % static_cast<uint32_t>(source.config().vocab_size));
  return prompts;
}

// The logits of the prompts' every token, ours and the CPU's.
void ExpectCloseToTheCpus(const WeightSource& source, const char* name, CudaBackend* backend, int32_t blocks,
                          int32_t rows) {
  auto cpu = CpuBackend::Create(source, {}).value();
  ASSERT_TRUE(cpu->Reserve(blocks, {.max_slots = 2, .max_step_rows = rows}).ok());
  StepDriver driver(backend, blocks), cpu_driver(cpu.get(), blocks);
  double squares = 0, largest = 0, count = 0;
  for (const std::vector<TokenId>& tokens : Prompts(source, name)) {
    for (StepDriver* each : {&driver, &cpu_driver}) {
      each->Attach(0, {.temperature = 0.0f});
      each->AddRows(0, tokens, static_cast<int32_t>(tokens.size()));
    }
    const StepResult result = driver.Run(true), expected = cpu_driver.Run(true);
    ASSERT_EQ(result.logits.size(), expected.logits.size());
    for (size_t i = 0; i < result.logits.size(); ++i) {
      const double difference = std::fabs(double{result.logits[i]} - expected.logits[i]);
      ASSERT_FALSE(std::isnan(difference)) << i;
      largest = std::max(largest, difference);
      squares += difference * difference;
    }
    count += static_cast<double>(result.logits.size());
    for (StepDriver* each : {&driver, &cpu_driver}) each->Release(0);
  }
  const double rms = std::sqrt(squares / count);
  std::printf("%s: largest %.5f, rms %.6f\n", name, largest, rms);
  EXPECT_LE(largest, 1e-1);
  EXPECT_LE(rms, 2e-2);
}

TEST_P(CudaBackendTest, LogitsAreCloseToTheCpus) {
  const std::unique_ptr<CudaBackend> backend = MakeBackend();
  ExpectCloseToTheCpus(*source_, GetParam(), backend.get(), kNumBlocks, kMaxRows);
}

bool IsTrained(const std::string& model) {
  return model == "smollm2" || model.rfind("tiny-", 0) == 0;
}

void ExpectRecorded(const std::string& model, CudaBackend* backend, int32_t blocks, int32_t rows) {
  StepDriver driver(backend, blocks);
  if (model == "smollm2") {
    ExpectSmolLm2Golden(&driver, backend->Info().vocab_size, rows,
                        ReadGolden("smollm2-135m/golden_fp16w.json"));
  } else {
    ExpectTinyGolden(&driver, ReadGolden(model + "/golden.json"));
  }
  driver.Run();  // the release that is still planned
}

// The opt-in path keeps the tolerances, not the bits, and its id says so.
TEST_P(CudaBackendTest, CublasLtIsCloseToTheCpusAndFollowsTheGoldens) {
  if (const absl::Status library = CublasLt::Find(); !library.ok()) GTEST_SKIP() << library.message();
  const std::unique_ptr<CudaBackend> ours = MakeBackend();
  for (bool graphs : {false, true}) {
    auto backend = CudaBackend::Create(*source_, {.graphs = graphs, .matmul = CudaMatmul::kCublasLt}).value();
    ASSERT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 64, .max_step_rows = kMaxRows}).ok());
    EXPECT_EQ(backend->Info().numerics_id.rfind(kCublasLtPrefix, 0), 0u);
    EXPECT_NE(backend->Info().numerics_id, kCublasLtPrefix + ours->Info().numerics_id);
    // At one token of SmolLM2's system prompt the CPU's own logits are 0.13 from float64's: what was recorded
    // says more there.
    if (IsTrained(GetParam())) ExpectRecorded(GetParam(), backend.get(), kNumBlocks, kMaxRows);
    if (std::string(GetParam()) != "smollm2")
      ExpectCloseToTheCpus(*source_, GetParam(), backend.get(), kNumBlocks, kMaxRows);
    StepDriver driver(backend.get(), kNumBlocks);
    driver.Attach(1, {.temperature = 0.0f});  // the driver before left slot 0 attached
    driver.AddRows(1, {5, 17, 30, 42}, 1);
    driver.Run();
    for (int i = 0; i < 20; ++i) {
      driver.AddDecodeRow(1);
      ASSERT_EQ(driver.Run().outputs.size(), 1u);
    }
  }
}

TEST_P(CudaBackendTest, FollowsTheGoldens) {
  if (!IsTrained(GetParam())) GTEST_SKIP() << "nothing was recorded of a made-up model";
  ExpectRecorded(GetParam(), MakeBackend().get(), kNumBlocks, kMaxRows);
}

// 256 decode rows of a step, in graphs and on the stream.
TEST_P(CudaBackendTest, BitsAreTheSameIn256Rows) {
  std::vector<Request> requests = MakeRequests(source_->config().vocab_size, 256);
  for (Request& request : requests) request.prompt.resize(std::min<size_t>(request.prompt.size(), 40));
  std::vector<Answer> expected;
  for (bool graphs : {false, true}) {
    auto backend = CudaBackend::Create(*source_, {.graphs = graphs}).value();
    ASSERT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 256, .max_step_rows = kMaxRows}).ok());
    if (expected.empty()) expected = ScheduleRunner(backend.get(), requests, {.return_logits = false}).Run();
    const std::vector<Answer> answers =
        ScheduleRunner(backend.get(), requests, {.batch = 256, .seed = 3, .return_logits = false}).Run();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(answers[i].tokens, expected[i].tokens) << i;
      ASSERT_EQ(answers[i].logprobs, expected[i].logprobs) << i;
    }
  }
}

// RIDGE_FUZZ_SCHEDULES says how many; a few suffice to notice that something broke.
TEST(CudaBackendFuzz, RandomSchedulesGiveTheSameTokensAndBits) {
  const char* count = std::getenv("RIDGE_FUZZ_SCHEDULES");
  const int schedules = count != nullptr ? std::atoi(count) : 30;
  for (const char* model : {"tiny-qwen2", "awkward"}) {
    const std::unique_ptr<WeightSource> source = MakeSource(model);
    std::vector<Request> requests = MakeRequests(source->config().vocab_size);
    requests.resize(24);
    std::unique_ptr<CudaBackend> backends[2];
    for (bool graphs : {false, true}) {
      backends[graphs] = CudaBackend::Create(*source, {.graphs = graphs}).value();
      ASSERT_TRUE(backends[graphs]->Reserve(1024, {.max_slots = 64, .max_step_rows = 1024}).ok());
    }
    const std::vector<Answer> expected = ScheduleRunner(backends[0].get(), requests, {}).Run();
    std::mt19937 random(17);
    for (int i = 0; i < schedules; ++i) {
      const Schedule schedule = {.batch = 1 + static_cast<int32_t>(random() % 24),
                                 .chunk = 1 << random() % 9,
                                 .seed = static_cast<uint32_t>(random()),
                                 .return_logits = random() % 2 == 0};
      const std::vector<Answer> answers =
          ScheduleRunner(backends[random() % 2].get(), requests, schedule).Run();
      for (size_t r = 0; r < answers.size(); ++r) {
        ASSERT_EQ(answers[r].tokens, expected[r].tokens) << model << ", schedule " << i << ", request " << r;
        ASSERT_EQ(answers[r].logprobs, expected[r].logprobs)
            << model << ", schedule " << i << ", request " << r;
        if (schedule.return_logits) {
          ASSERT_TRUE(answers[r].logits == expected[r].logits)
              << model << ", schedule " << i << ", request " << r;
        }
      }
    }
  }
}

TEST(CudaBackendBatch, TwoHundredAndFiftySixSequencesAtOnceGetWhatEachGetsAlone) {
  constexpr size_t kBatch = 256;
  for (const char* model : {"tiny-qwen2", "awkward", "qwen2.5-1.5b, 2 layers"}) {
    const std::unique_ptr<WeightSource> source = MakeSource(model);
    std::vector<Request> requests = MakeRequests(source->config().vocab_size);
    std::erase_if(requests, [](const Request& request) { return request.prompt.size() > 40; });
    const size_t distinct = requests.size();
    const std::unique_ptr<CudaBackend> backend = CudaBackend::Create(*source, {}).value();
    ASSERT_TRUE(backend->Reserve(1024, {.max_slots = kBatch, .max_step_rows = 1024}).ok());
    const std::vector<Answer> expected = ScheduleRunner(backend.get(), requests, {}).Run();
    while (requests.size() < kBatch) requests.push_back(requests[requests.size() - distinct]);
    for (const bool logits : {true, false}) {
      const Schedule schedule = {.batch = kBatch, .chunk = 16, .seed = 10, .return_logits = logits};
      const std::vector<Answer> answers = ScheduleRunner(backend.get(), requests, schedule).Run();
      for (size_t i = 0; i < kBatch; ++i) {
        const Answer& alone = expected[i % distinct];
        ASSERT_EQ(answers[i].tokens, alone.tokens) << model << ", request " << i;
        ASSERT_EQ(answers[i].logprobs, alone.logprobs) << model << ", request " << i;
        if (logits) {
          ASSERT_TRUE(answers[i].logits == alone.logits) << model << ", request " << i;
        }
      }
    }
  }
}

TEST_P(CudaBackendTest, ASequencesBitsDependOnItAlone) {
  const std::vector<Request> requests = MakeRequests(source_->config().vocab_size);
  const std::unique_ptr<CudaBackend> backend = MakeBackend(), stream = MakeBackend(false);
  EXPECT_EQ(backend->Info().numerics_id, stream->Info().numerics_id);
  const std::vector<Answer> expected = ScheduleRunner(backend.get(), requests, {}).Run();
  const Schedule schedules[] = {{.batch = 2, .seed = 2},
                                {.batch = 7, .chunk = 1, .seed = 3},
                                {.batch = 8, .chunk = 16, .seed = 4},
                                {.batch = 16, .chunk = 100, .seed = 5},
                                {.batch = 33, .chunk = 7, .seed = 6},
                                {.batch = 64, .chunk = 512, .seed = 7},
                                {.batch = 64, .seed = 8, .return_logits = false},
                                {.batch = 5, .chunk = 64, .seed = 9, .return_logits = false}};
  for (const Schedule& schedule : schedules) {
    for (CudaBackend* each : {backend.get(), stream.get()}) {
      const std::vector<Answer> answers = ScheduleRunner(each, requests, schedule).Run();
      for (size_t i = 0; i < answers.size(); ++i) {
        ASSERT_EQ(answers[i].tokens, expected[i].tokens) << "request " << i << ", batch " << schedule.batch;
        ASSERT_EQ(answers[i].logprobs, expected[i].logprobs)
            << "request " << i << ", batch " << schedule.batch;
        if (schedule.return_logits) {
          ASSERT_TRUE(answers[i].logits == expected[i].logits)
              << "request " << i << ", batch " << schedule.batch;
        }
      }
    }
  }
}

TEST_P(CudaBackendTest, ControlsLogprobsAndForksAreThePlainDefinitions) {
  for (bool graphs : {false, true}) {
    const std::unique_ptr<CudaBackend> backend = MakeBackend(graphs);
    ExtendedSampling cases(backend.get(), kNumBlocks);
    for (uint32_t seed = 1; seed <= 3; ++seed) cases.Run(16, seed);
    ExpectForksGoOn(backend.get(), kNumBlocks);
  }
}

// Requests with every sampling field through the whole engine: the same ids and bits alone and in company,
// with a prefix cache or without, preempted or not, by every engine of the ladder. RIDGE_SAME_TOKENS says how
// many requests.
TEST(CudaEngine, TokensAndLogprobsDependOnTheRequestAlone) {
  const char* count = std::getenv("RIDGE_SAME_TOKENS");
  const std::unique_ptr<WeightSource> source = MakeSource("tiny-qwen2");
  const std::vector<same_tokens::Request> requests =
      same_tokens::RequestMaker(source->config().vocab_size).Make(count != nullptr ? std::atoi(count) : 200);
  const auto make = [&](const same_tokens::Setting& setting) {
    CudaOptions options;
    options.graphs = setting.policy.launch == LaunchPolicy::kGraph;
    options.split_attention = setting.policy.attention == AttentionPolicy::kSplit;
    std::unique_ptr<CudaBackend> backend = CudaBackend::Create(*source, options).value();
    EXPECT_TRUE(backend->Reserve(setting.num_blocks, {setting.max_running, setting.step_tokens}).ok());
    return backend;
  };
  const std::vector<same_tokens::Answer> alone =
      same_tokens::Alone(make({"alone", 1, 512, 512}).get(), requests);
  std::vector<same_tokens::Setting> settings = {{"64 at once", 64, 512, 512},
                                                {"a small pool", 16, 128, 64, {}, 4, false, 30},
                                                {"chunks of 7", 64, 128, 7, {}, 5}};
  for (const std::string& preset : PresetNames())
    settings.push_back({preset.c_str(), 8, 512, 64, PresetPolicy(preset), 3});
  for (const same_tokens::Setting& setting : settings) {
    const std::unique_ptr<CudaBackend> backend = make(setting);
    const std::vector<same_tokens::Answer> together =
        same_tokens::Run(backend.get(), requests, setting).Finish();
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_EQ(together[i], alone[i]) << setting.name << ", request " << i;
  }
}

TEST_P(CudaBackendTest, PaddedRowsAreCountedAndChangeNothing) {
  for (bool graphs : {false, true}) {
    const std::unique_ptr<CudaBackend> backend = MakeBackend(graphs);
    StepDriver driver(backend.get(), kNumBlocks);
    for (SlotId slot : {0, 1}) driver.Attach(slot, {.temperature = 0.0f});
    driver.AddRows(0, {5, 17, 30, 42}, 1);
    const StepResult alone = driver.Run(true);
    driver.AddRows(1, {5, 17, 30, 42}, 1);
    const StepResult padded = driver.Run(true, {.rows = 37});
    EXPECT_TRUE(padded.logits == alone.logits);
    EXPECT_EQ(padded.rows, 41);
    EXPECT_EQ(padded.padded_rows, 37);
    driver.AddDecodeRow(0);
    const StepResult next = driver.Run();
    driver.AddDecodeRow(1);
    for (SlotId slot : {0, 1}) driver.Reserve(slot, 40);
    const StepResult wide = driver.Run(false, {.rows = 2, .width = 40, .slots = {0}});
    EXPECT_EQ(wide.outputs[0].token, next.outputs[0].token);
    EXPECT_EQ(wide.kv_positions, 2 * 40);
  }
}

// What a rectangle reads besides, one pass or split, in graphs and on the stream.
TEST_P(CudaBackendTest, OnePassAndRectanglesChangeNoBit) {
  const int32_t prompt = std::min(300, source_->config().context_length / 2);
  std::vector<TokenId> tokens(static_cast<size_t>(prompt));
  std::mt19937 random(12);
  for (TokenId& token : tokens)
    token = static_cast<TokenId>(random() % static_cast<uint32_t>(source_->config().vocab_size));
  std::vector<StepResult> expected;
  for (const bool split : {true, false}) {
    for (const bool graphs : {false, true}) {
      auto backend = CudaBackend::Create(*source_, {.graphs = graphs, .split_attention = split}).value();
      ASSERT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 8, .max_step_rows = kMaxRows}).ok());
      for (const StepDriver::Padding& padding :
           {StepDriver::Padding{}, {.rows = 3, .width = prompt + 6, .slots = {3}}}) {
        StepDriver driver(backend.get(), kNumBlocks);
        for (SlotId slot : {0, 1, 2}) {
          driver.Attach(slot, {.logprobs = true});
          driver.Reserve(slot, prompt + 6);
          driver.AddRows(slot, {tokens.begin(), tokens.begin() + (slot + 1) * prompt / 3}, 1);
        }
        // A sequence that has ended and keeps its place.
        driver.Attach(3, {});
        driver.Reserve(3, prompt + 6);
        driver.AddRows(3, {1, 2}, 1);
        driver.Run();
        std::vector<StepResult> results;
        for (int step = 0; step < 6; ++step) {
          for (SlotId slot : {0, 1, 2}) driver.AddDecodeRow(slot);
          results.push_back(driver.Run(!graphs, padding));
        }
        if (expected.empty()) expected = results;
        for (size_t i = 0; i < results.size(); ++i) {
          for (size_t row = 0; row < 3; ++row) {
            EXPECT_EQ(results[i].outputs[row].token, expected[i].outputs[row].token);
            EXPECT_EQ(results[i].outputs[row].logprob, expected[i].outputs[row].logprob);
          }
          if (!graphs) {
            EXPECT_TRUE(results[i].logits == expected[i].logits);
          }
        }
        for (SlotId slot : {0, 1, 2, 3}) driver.Release(slot);
        driver.Run();
      }
    }
  }
}

// Of this build's kernels and of those that another run had (CUDA_FORCE_PTX_JIT=1 takes the portable ones):
// RIDGE_TEST_LOGITS names a file that keeps a line a model.
TEST_P(CudaBackendTest, EveryBuildHasTheSameNumericsIdAndLogits) {
  const char* path = std::getenv("RIDGE_TEST_LOGITS");
  if (path == nullptr) GTEST_SKIP() << "RIDGE_TEST_LOGITS names no file";
  const std::unique_ptr<CudaBackend> backend = CudaBackend::Create(*source_, {}).value();
  ASSERT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 256, .max_step_rows = kMaxRows}).ok());
  const std::vector<Request> requests = MakeRequests(source_->config().vocab_size, 256);
  Sha256 hash;
  const auto add = [&](const auto& values) {
    hash.Update({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])});
  };
  for (const int32_t batch : {1, 2, 7, 8, 16, 33, 64, 256}) {
    std::vector<Request> served(requests.begin(), requests.begin() + std::max(16, batch));
    // There are blocks for so many.
    for (Request& request : served)
      if (batch == 256) request.prompt.resize(std::min<size_t>(request.prompt.size(), 40));
    // With logits on the stream, without by graphs.
    for (const bool logits : {true, false}) {
      const Schedule schedule = {.batch = batch, .seed = 5, .return_logits = logits};
      for (const Answer& answer : ScheduleRunner(backend.get(), served, schedule).Run()) {
        add(answer.tokens);
        add(answer.logprobs);
        add(answer.logits);
      }
    }
  }
  const std::string name = std::string(GetParam()) + ": ";
  const std::string line = name + backend->Info().numerics_id + " " + hash.HexDigest();
  std::ifstream file(path);
  for (std::string other; std::getline(file, other);) {
    if (other.rfind(name, 0) != 0) continue;
    EXPECT_EQ(line, other);
    return;
  }
  std::ofstream(path, std::ios::app) << line << std::endl;
  std::cout << line << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Models, CudaBackendTest,
                         testing::Values("tiny-llama", "tiny-qwen2", "tiny-llama3", "tiny-qwen3", "awkward",
                                         "qwen2.5-1.5b, 2 layers", "smollm2"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace ridge::worker
