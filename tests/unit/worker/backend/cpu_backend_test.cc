#include "worker/backend/cpu/cpu_backend.h"

#include <cmath>

#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/backend/extended_sampling.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

using testing::HasSubstr;

constexpr SamplingParams kGreedy = {.temperature = 0.0f};

std::unique_ptr<WeightSource> TinyLlama() {
  return OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-llama").value();
}

ModelConfig SmallConfig() {
  ModelConfig config;
  config.name = "small";
  config.num_layers = 1;
  config.hidden_size = 32;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  config.mlp_size = 32;
  config.vocab_size = 64;
  config.context_length = 64;
  config.tied_embedding = true;
  return config;
}

class CpuBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    backend_ = CpuBackend::Create(*TinyLlama(), {.threads = 2}).value();
    ASSERT_TRUE(backend_->Reserve(32, {.max_slots = 4, .max_step_rows = 64}).ok());
  }

  // Greedy ids, every one fed from the host after it was collected.
  std::vector<TokenId> Generate(StepDriver* driver, SlotId slot, const std::vector<TokenId>& prompt,
                                int count) {
    driver->Attach(slot, kGreedy);
    std::vector<TokenId> ids, next = prompt;
    for (int i = 0; i < count; ++i) {
      driver->AddRows(slot, next, 1);
      ids.push_back(driver->Run().outputs[0].token);
      next = {ids.back()};
    }
    driver->Release(slot);
    return ids;
  }

  std::unique_ptr<CpuBackend> backend_;
};

TEST_F(CpuBackendTest, DescribesItself) {
  const BackendInfo& info = backend_->Info();
  EXPECT_THAT(info.device, testing::MatchesRegex("cpu: .* \\(.*, 2 threads\\)"));
  EXPECT_EQ(info.kv_block_bytes,
            2 * 2 * 2 * 64 * 16);  // K and V, 2 bytes, 2 layers, 2 heads of 32, 16 tokens
  EXPECT_EQ(info.vocab_size, 512);
  EXPECT_EQ(info.weight_bytes, 2 * (2 * 512 * 64 + 2 * (256 * 64 + 64 * 128 + 3 * 160 * 64)));
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_EQ(info.numerics_id.size(), 32u);
}

TEST_F(CpuBackendTest, NumericsIdNamesTheModel) {
  const auto qwen = OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-qwen2").value();
  EXPECT_NE(CpuBackend::Create(*qwen, {.threads = 1}).value()->Info().numerics_id,
            backend_->Info().numerics_id);
  EXPECT_EQ(CpuBackend::Create(*TinyLlama(), {.threads = 1}).value()->Info().numerics_id,
            backend_->Info().numerics_id);
}

TEST_F(CpuBackendTest, StepsInFlightTakeTheTokensOfTheStepsBefore) {
  StepDriver driver(backend_.get(), 32);
  const std::vector<TokenId> prompt = {5, 17, 300, 42};
  const std::vector<TokenId> expected = Generate(&driver, 0, prompt, 6);
  driver.Attach(1, kGreedy);
  driver.AddRows(1, prompt, 1);
  std::vector<StepTicket> tickets = {driver.Submit()};
  for (int i = 1; i < 6; ++i) {
    driver.AddDecodeRow(1);
    tickets.push_back(driver.Submit());
  }
  std::vector<TokenId> ids;
  for (StepTicket ticket : tickets) ids.push_back(backend_->Collect(ticket).value().outputs[0].token);
  EXPECT_EQ(ids, expected);
}

TEST_F(CpuBackendTest, WaitsForAStepNoLongerThanItIsAskedTo) {
  StepDriver driver(backend_.get(), 32);
  driver.Attach(0, kGreedy);
  driver.AddRows(0, std::vector<TokenId>(64, 5), 1);
  const StepTicket ticket = driver.Submit();
  backend_->WaitFor(ticket, 1);
  const int64_t begin_ns = RealClock()->NowNs();
  backend_->WaitFor(ticket, 600'000'000'000);
  EXPECT_LT(RealClock()->NowNs() - begin_ns, 60'000'000'000);
  EXPECT_TRUE(backend_->Collect(ticket).ok());
}

TEST_F(CpuBackendTest, SegmentMayMixTheSlotsTokenWithHostTokens) {
  StepDriver driver(backend_.get(), 32);
  driver.Attach(0, kGreedy);
  driver.AddRows(0, {5, 6}, 1);
  const TokenId first = driver.Run().outputs[0].token;
  driver.AddRows(0, {first, 7, 8}, 1);
  const StepResult expected = driver.Run(true);
  StepPlan plan;
  plan.attaches = {{1, kGreedy}};
  plan.appends = {{1, 0}};
  plan.tokens = {5, 6};
  plan.segments = {{1, 0, 2, false, 0, 1}};
  ASSERT_EQ(backend_->Collect(backend_->Submit(plan)).value().outputs[0].token, first);
  plan = {};
  plan.tokens = {99, 7, 8};
  plan.segments = {{1, 2, 3, true, 1, 1}};
  plan.return_logits = true;
  EXPECT_EQ(backend_->Collect(backend_->Submit(plan)).value().logits, expected.logits);
}

TEST_F(CpuBackendTest, PaddedRowsAreComputedAndCountedAndChangeNothing) {
  StepDriver driver(backend_.get(), 32);
  const std::vector<TokenId> prompt = {5, 17, 300, 42};
  driver.Attach(0, kGreedy);
  driver.AddRows(0, prompt, 1);
  const StepResult alone = driver.Run(true);
  driver.Attach(1, kGreedy);
  driver.AddRows(1, prompt, 1);
  const StepResult padded = driver.Run(true, {.rows = 37});
  EXPECT_EQ(padded.logits, alone.logits);
  EXPECT_EQ(padded.rows, 41);
  EXPECT_EQ(padded.padded_rows, 37);
  EXPECT_EQ(padded.kv_positions, 1 + 2 + 3 + 4);

  driver.AddDecodeRow(0);
  const StepResult next = driver.Run(true);
  EXPECT_EQ(next.kv_positions, 5);
  driver.AddDecodeRow(1);
  driver.Reserve(0, 40);
  driver.Reserve(1, 40);
  const StepResult wide = driver.Run(true, {.rows = 2, .width = 40, .slots = {0}});
  EXPECT_EQ(wide.logits, next.logits);
  EXPECT_EQ(wide.kv_positions, 2 * 40);
}

// A rectangle over several chunks of keys: a row of the widest position, one that reads as many, and the
// place of an ended sequence, with keys shared out between threads or not.
TEST(CpuRectangleTest, ReadsTheWidestRowsPositionsAndChangesNoBit) {
  const std::unique_ptr<WeightSource> source = TinyLlama();
  std::vector<float> expected;
  for (const bool split : {true, false}) {
    for (const int32_t width : {0, 301, 400, 512}) {
      SCOPED_TRACE(testing::Message() << "split " << split << ", width " << width);
      const auto backend = CpuBackend::Create(*source, {.threads = 2, .split_attention = split}).value();
      ASSERT_TRUE(backend->Reserve(200, {.max_slots = 4, .max_step_rows = 512}).ok());
      StepDriver driver(backend.get(), 200);
      constexpr int kLengths[] = {300, 20, 280};
      for (SlotId slot = 0; slot < 3; ++slot) {
        driver.Attach(slot, kGreedy);
        driver.AddRows(slot, std::vector<TokenId>(static_cast<size_t>(kLengths[slot]), 7 + slot), 1);
        driver.Reserve(slot, 512);
        driver.Run();
      }
      driver.AddDecodeRow(0);
      driver.AddDecodeRow(1);
      StepDriver::Padding padding;
      if (width > 0) padding = {.rows = 3, .width = width, .slots = {2}};
      const StepResult result = driver.Run(true, padding);
      EXPECT_EQ(result.kv_positions, width == 0 ? 301 + 21 : 3 * width);
      if (expected.empty()) expected = result.logits;
      EXPECT_EQ(result.logits, expected);
    }
  }
}

TEST_F(CpuBackendTest, CountsParallelRegionsAsLaunches) {
  StepDriver driver(backend_.get(), 32);
  driver.Attach(0, kGreedy);
  driver.AddRows(0, {5, 17}, 0);
  EXPECT_EQ(driver.Run().launches, 1);  // the layers
  driver.AddRows(0, {5}, 1);
  EXPECT_EQ(driver.Run().launches, 2);  // and the vocabulary
}

TEST_F(CpuBackendTest, LastRowsGiveOneOutputEach) {
  StepDriver driver(backend_.get(), 32);
  const std::vector<TokenId> prompt = {5, 17, 300, 42, 8};
  driver.Attach(0, kGreedy);
  driver.AddRows(0, prompt, 3);
  driver.Attach(1, kGreedy);
  driver.AddRows(1, {5, 17}, 0);
  driver.Attach(2, kGreedy);
  driver.AddRows(2, {5, 17, 300}, 1);
  const StepResult result = driver.Run(true);
  EXPECT_EQ(result.rows, 10);
  ASSERT_EQ(result.outputs.size(), 4u);
  ASSERT_EQ(result.logits.size(), 4u * 512);
  // The third row of slot 0 is the last one of slot 2.
  EXPECT_EQ(std::vector<float>(result.logits.begin(), result.logits.begin() + 512),
            std::vector<float>(result.logits.begin() + 3 * 512, result.logits.end()));
  // The slot goes on from the token of its last row.
  driver.AddDecodeRow(0);
  const StepResult next = driver.Run(true);
  StepDriver other(backend_.get(), 32, 2);
  other.Attach(3, kGreedy);
  other.AddRows(3, {5, 17, 300, 42, 8, result.outputs[2].token}, 1);
  EXPECT_EQ(other.Run(true).logits, next.logits);
}

TEST_F(CpuBackendTest, MoreOutputsThanLogitsAreKept) {
  std::vector<TokenId> tokens(90);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 5 % 512);
  auto backend = CpuBackend::Create(*TinyLlama(), {.threads = 2}).value();
  ASSERT_TRUE(backend->Reserve(32, {.max_slots = 4, .max_step_rows = 200}).ok());
  StepDriver driver(backend.get(), 32);
  driver.Attach(0, kGreedy);
  driver.AddRows(0, tokens, 90);
  const StepResult whole = driver.Run(true);
  ASSERT_EQ(whole.outputs.size(), 90u);
  driver.Attach(1, kGreedy);
  for (size_t i = 0; i < tokens.size(); ++i) {
    driver.AddRows(1, {tokens[i]}, 1);
    const StepResult one = driver.Run(true);
    ASSERT_EQ(one.outputs[0].token, whole.outputs[i].token);
    ASSERT_TRUE(std::equal(one.logits.begin(), one.logits.end(),
                           whole.logits.begin() + static_cast<int64_t>(i * 512)));
  }
}

TEST_F(CpuBackendTest, LogprobIsTheLogSoftmaxOfRawLogits) {
  StepDriver driver(backend_.get(), 32);
  driver.Attach(0, {.temperature = 0.5f, .top_k = 3, .seed = 9, .logprobs = true});
  driver.Attach(1, {.temperature = 0.5f, .top_k = 3, .seed = 9});
  driver.AddRows(0, {5, 17, 300}, 1);
  driver.AddRows(1, {5, 17, 300}, 1);
  const StepResult result = driver.Run(true);
  EXPECT_EQ(result.outputs[0].token, result.outputs[1].token);
  EXPECT_EQ(result.outputs[1].logprob, 0.0f);
  double sum = 0;
  for (int i = 0; i < 512; ++i) sum += std::exp(double{result.logits[i]});
  EXPECT_NEAR(result.outputs[0].logprob, result.logits[result.outputs[0].token] - std::log(sum), 1e-5);
}

TEST_F(CpuBackendTest, ControlsLogprobsAndForksAreThePlainDefinitions) {
  auto backend = CpuBackend::Create(*TinyLlama(), {.threads = 2}).value();
  ASSERT_TRUE(backend->Reserve(128, {.max_slots = 16, .max_step_rows = 128}).ok());
  ExtendedSampling cases(backend.get(), 128);
  for (uint32_t seed = 1; seed <= 4; ++seed) cases.Run(16, seed);
  ExpectForksGoOn(backend.get(), 128);
}

TEST_F(CpuBackendTest, ReleasedSlotAndStaleBlocksStartAfresh) {
  StepDriver driver(backend_.get(), 4);
  const std::vector<TokenId> prompt = {5, 17, 300, 42};
  const std::vector<TokenId> expected = Generate(&driver, 0, prompt, 20);
  std::vector<TokenId> long_prompt(40, 77);
  Generate(&driver, 0, long_prompt, 3);
  EXPECT_EQ(Generate(&driver, 0, prompt, 20), expected);
}

TEST_F(CpuBackendTest, PlanWithoutSegmentsIsAStep) {
  StepPlan plan;
  plan.attaches = {{2, kGreedy}};
  EXPECT_TRUE(backend_->Collect(backend_->Submit(plan)).value().outputs.empty());
  plan = {};
  plan.releases = {2};
  EXPECT_EQ(backend_->Collect(backend_->Submit(plan)).value().rows, 0);
}

TEST_F(CpuBackendTest, DestructionDropsWhatWasNotCollected) {
  StepDriver driver(backend_.get(), 32);
  driver.Attach(0, kGreedy);
  driver.AddRows(0, std::vector<TokenId>(60, 3), 1);
  driver.Submit();
  driver.AddDecodeRow(0);
  driver.Submit();
  backend_.reset();
}

// One KV head: with more threads the chunks of a long context are shared out.
TEST(CpuBackendThreads, ShareALongContextWithoutChangingABit) {
  ModelConfig config = SmallConfig();
  config.context_length = 2048;
  std::vector<TokenId> prompt(1100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * 7 % 64);
  std::vector<float> expected;
  for (const int threads : {1, 2, 3}) {
    const auto backend = CpuBackend::Create(SyntheticSource(config), {.threads = threads}).value();
    ASSERT_TRUE(backend->Reserve(80, {.max_slots = 2, .max_step_rows = 2048}).ok());
    StepDriver driver(backend.get(), 80);
    driver.Attach(0, kGreedy);
    driver.AddRows(0, prompt, 1);
    std::vector<float> logits = driver.Run(true).logits;
    for (int i = 0; i < 3; ++i) {
      driver.AddDecodeRow(0);
      const StepResult result = driver.Run(true);
      logits.insert(logits.end(), result.logits.begin(), result.logits.end());
    }
    if (threads == 1) expected = logits;
    EXPECT_EQ(logits, expected) << threads << " threads";
  }
}

TEST(CpuBackendCreate, RefusesAnUnsupportedHeadDim) {
  ModelConfig config = SmallConfig();
  config.head_dim = 8;
  const auto backend = CpuBackend::Create(SyntheticSource(config), {.threads = 1});
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("small: a head_dim of 8"));
}

TEST(CpuBackendCreate, ReserveSaysHowMuchIsMissing) {
  const auto backend = CpuBackend::Create(SyntheticSource(SmallConfig()), {.threads = 1}).value();
  const absl::Status status = backend->Reserve(INT32_MAX, {.max_slots = 1, .max_step_rows = 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex("KV cache: [0-9]+ MiB of memory are needed, [0-9]+ MiB are missing"));
}

// A source in which one tensor is constant, or cannot be read.
class OverriddenSource : public SyntheticSource {
 public:
  OverriddenSource(TensorRole role, Half value, absl::Status status)
      : SyntheticSource(SmallConfig()), role_(role), value_(value), status_(std::move(status)) {}

  absl::Status ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                        absl::Span<Half> out) const override {
    if (id.role != role_) return SyntheticSource::ReadRows(id, row_begin, row_count, out);
    std::fill(out.begin(), out.end(), value_);
    return status_;
  }

 private:
  const TensorRole role_;
  const Half value_;
  const absl::Status status_;
};

TEST(CpuBackendCreate, PassesTheErrorOfTheSourceOn) {
  for (TensorRole role : {TensorRole::kDown, TensorRole::kMlpNorm}) {
    const OverriddenSource source(role, 0, absl::DataLossError("model.gguf: tensor x: broken"));
    const auto backend = CpuBackend::Create(source, {.threads = 2});
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(backend.status().message(), "model.gguf: tensor x: broken");
  }
}

TEST(CpuBackendSaturation, IsCountedAndStaysFinite) {
  constexpr Half kLarge = 0x7400;  // 16,384
  const OverriddenSource source(TensorRole::kUp, kLarge, absl::OkStatus());
  const auto backend = CpuBackend::Create(source, {.threads = 2}).value();
  ASSERT_TRUE(backend->Reserve(4, {.max_slots = 1, .max_step_rows = 8}).ok());
  StepDriver driver(backend.get(), 4);
  driver.Attach(0, kGreedy);
  driver.AddRows(0, {1, 2, 3, 4}, 1);
  for (float logit : driver.Run(true).logits) EXPECT_TRUE(std::isfinite(logit));
  EXPECT_GT(backend->saturations(), 0);
}

class CpuBackendDeathTest : public testing::Test {
 protected:
  CpuBackendDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Runs one plan after slot 0 was attached with one block.
  static void RunPlan(StepPlan plan) {
    const auto backend = CpuBackend::Create(SyntheticSource(SmallConfig()), {.threads = 1}).value();
    RIDGE_CHECK(backend->Reserve(4, {.max_slots = 2, .max_step_rows = 8}).ok());
    StepPlan first;
    first.attaches = {{0, kGreedy}};
    first.appends = {{0, 0}};
    RIDGE_CHECK(backend->Collect(backend->Submit(first)).ok());
    RIDGE_CHECK(backend->Collect(backend->Submit(plan)).ok());
  }
};

TEST_F(CpuBackendDeathTest, MalformedChangesAreBugs) {
  StepPlan plan;
  plan.releases = {1};
  EXPECT_DEATH(RunPlan(plan), "slot.attached");
  plan = {};
  plan.attaches = {{0, kGreedy}};
  EXPECT_DEATH(RunPlan(plan), "slot.attached");
  plan.attaches = {{2, kGreedy}};
  EXPECT_DEATH(RunPlan(plan), "attach.slot");
  plan = {};
  plan.appends = {{0, 4}};
  EXPECT_DEATH(RunPlan(plan), "append.block");
  plan.appends = {{1, 1}};
  EXPECT_DEATH(RunPlan(plan), "slot.attached");
}

TEST_F(CpuBackendDeathTest, MalformedSegmentsAreBugs) {
  const auto rows = [](std::vector<Segment> segments, std::vector<TokenId> tokens) {
    StepPlan plan;
    plan.segments = std::move(segments);
    plan.tokens = std::move(tokens);
    return plan;
  };
  RunPlan(rows({{0, 0, 1, false, 0, 1}}, {1}));  // as it should be
  EXPECT_DEATH(RunPlan(rows({{1, 0, 1, false, 0, 1}}, {1})), "slot.attached");
  EXPECT_DEATH(RunPlan(rows({{0, 16, 1, false, 0, 1}}, {1})), "slot.blocks.size");
  EXPECT_DEATH(RunPlan(rows({{0, 0, 9, false, 0, 1}}, std::vector<TokenId>(9, 1))), "max_rows");
  EXPECT_DEATH(RunPlan(rows({{0, 0, 2, false, 0, 1}}, {1})), "plan.tokens.size");
  EXPECT_DEATH(RunPlan(rows({{0, 0, 1, false, 0, 2}}, {1})), "num_outputs");
  EXPECT_DEATH(RunPlan(rows({{0, 0, 1, false, 0, 1}}, {64})), "vocab_size");
  EXPECT_DEATH(RunPlan(rows({{0, 0, 1, true, 0, 1}}, {})), "vocab_size");  // nothing was sampled yet
  EXPECT_DEATH(RunPlan(rows({{0, 0, 1, false, 0, 1}, {0, 1, 1, false, 0, 1}}, {1})), "run.slot");
}

}  // namespace
}  // namespace ridge::worker
