// The CUDA backend's dealings with the card, on a fake one: memory, and what is said when it fails.
#include "worker/backend/cuda/cuda_backend.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_cuda_runtime.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;
constexpr int32_t kNumBlocks = 64;
constexpr BackendLimits kLimits = {.max_slots = 8, .max_step_rows = 64};

class CudaBackendTest : public testing::Test {
 protected:
  void SetUp() override { source_ = OpenModel(RIDGE_TEST_DATA_DIR "/tiny-llama").value(); }

  std::unique_ptr<CudaBackend> Create(const fake_cuda::Card& card = {}, bool graphs = true) {
    fake_cuda::Insert(card);
    return CudaBackend::Create(*source_, {.graphs = graphs}).value();
  }

  std::unique_ptr<CudaBackend> Reserved(bool graphs = true) {
    std::unique_ptr<CudaBackend> backend = Create({}, graphs);
    EXPECT_TRUE(backend->Reserve(kNumBlocks, kLimits).ok());
    return backend;
  }

  std::unique_ptr<WeightSource> source_;
};

TEST_F(CudaBackendTest, AShapeThatTheKernelsDoNotKnowIsNamed) {
  fake_cuda::Insert({});
  const auto refusal = [this](auto change) {
    ModelConfig config = source_->config();
    config.name = "odd";
    change(&config);
    const absl::Status status = CudaBackend::Create(SyntheticSource(config), {}).status();
    EXPECT_TRUE(status.ok() || absl::IsUnimplemented(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](ModelConfig* config) { config->hidden_size = 72; }),
            "odd: a hidden_size of 72 is not supported on CUDA, only multiples of 16");
  EXPECT_EQ(refusal([](ModelConfig* config) { config->mlp_size = 1000; }),
            "odd: a mlp_size of 1000 is not supported on CUDA, only multiples of 16");
  EXPECT_EQ(refusal([](ModelConfig* config) { config->head_dim = 24; }),
            "odd: a head_dim of 24 is not supported on CUDA, only multiples of 16 up to 256");
  EXPECT_EQ(refusal([](ModelConfig* config) {
              config->num_heads = 17;
              config->num_kv_heads = 1;
            }),
            "odd: a group of query heads of 17 is not supported on CUDA, only up to 16");
  EXPECT_EQ(refusal([](ModelConfig* config) { config->vocab_size = 1507329; }),
            "odd: a vocab_size of 1507329 is not supported on CUDA, only up to 1507328");
  EXPECT_EQ(refusal([](ModelConfig* config) { config->hidden_size = 65552; }),
            "odd: a hidden_size of 65552 is not supported on CUDA, only up to 65536");
  EXPECT_EQ(refusal([](ModelConfig* config) {
              config->hidden_size = 48;
              config->mlp_size = 1008;
              config->head_dim = 240;
              config->num_heads = 16;
              config->num_kv_heads = 1;
            }),
            "");
}

TEST_F(CudaBackendTest, KvMemoryIsWhatIsLeftBesideWeightsWorkspaceGraphsAndAMargin) {
  const std::unique_ptr<CudaBackend> backend =
      Create({.memory_bytes = 1024 * kMiB, .graph_bytes = 10 * kMiB});
  const int32_t blocks = backend->DefaultBlocks(kLimits).value();
  ASSERT_TRUE(backend->Reserve(blocks, kLimits).ok());
  const int64_t free = 1024 * kMiB - fake_cuda::UsedBytes();
  EXPECT_GE(free, CudaBackend::kMemoryMargin);
  EXPECT_LT(free, CudaBackend::kMemoryMargin + backend->Info().kv_block_bytes);
  EXPECT_GT(blocks * backend->Info().kv_block_bytes, 500 * kMiB);
}

TEST_F(CudaBackendTest, TooLittleMemorySaysHowMuchIsMissing) {
  std::unique_ptr<CudaBackend> backend = Create({.memory_bytes = 260 * kMiB});
  EXPECT_THAT(std::string(backend->DefaultBlocks(kLimits).status().message()),
              AllOf(StartsWith("KV cache: "), HasSubstr("MiB of the card's memory are missing"),
                    HasSubstr("of 260 MiB are free")));
  backend = Create({.memory_bytes = 260 * kMiB});
  EXPECT_THAT(std::string(backend->Reserve(1 << 20, kLimits).message()),
              AllOf(StartsWith("KV cache: "), HasSubstr("MiB are missing")));
  fake_cuda::Insert({.memory_bytes = 1000});
  EXPECT_THAT(std::string(CudaBackend::Create(*source_, {}).status().message()),
              AllOf(StartsWith("weights: "), HasSubstr("MiB are missing")));
}

TEST_F(CudaBackendTest, GraphsThatFindNoMemorySayHowMuchThereIsAndWhatLeavesMore) {
  const std::unique_ptr<CudaBackend> backend =
      Create({.memory_bytes = 256 * kMiB, .graph_bytes = 300 * kMiB});
  EXPECT_THAT(
      std::string(backend->Reserve(kNumBlocks, kLimits).message()),
      AllOf(StartsWith("graphs: no memory is left for a step of 1 rows ("),
            HasSubstr(" of 256 MiB of the card's memory are free); a smaller --kv-cache-bytes leaves more")));
}

TEST_F(CudaBackendTest, StepsAllocateNothing) {
  for (bool graphs : {false, true}) {
    const std::unique_ptr<CudaBackend> backend = Reserved(graphs);
    const int64_t allocations = fake_cuda::NumAllocations(), bytes = fake_cuda::UsedBytes();
    StepDriver driver(backend.get(), kNumBlocks);
    for (SlotId slot = 0; slot < 8; ++slot) {
      driver.Attach(slot, {.temperature = slot % 2 == 0 ? 0.0f : 0.7f});
      driver.AddRows(slot, std::vector<TokenId>(20, 1), 1);
      driver.Run();
      for (SlotId each = 0; each <= slot; ++each) driver.AddDecodeRow(each);
      driver.Run();
    }
    // The most likely tokens, controls and banned tokens have their memory, too.
    driver.Release(0);
    SlotAttach attach{0, {.logprobs = true, .top_logprobs = 3, .repetition_penalty = 1.1f}};
    attach.controls.banned_ids = {5};
    attach.prompt_tokens = 3;
    attach.history = {1, 2, 3};
    driver.Attach(attach);
    driver.AddScoredRows(0, {1, 2, 3}, {2, 3}, 1);
    driver.Run();
    driver.AddDecodeRow(0, {7});
    driver.Run();
    EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
    EXPECT_EQ(fake_cuda::UsedBytes(), bytes);
  }
}

// The backend's streams do not wait for the default one.
TEST_F(CudaBackendTest, NothingComesToTheCardPastTheStreamsOfThoseWhoReadIt) {
  const std::unique_ptr<CudaBackend> backend = Reserved();
  int copies = 0;
  for (const fake_cuda::StreamCall& call : fake_cuda::StreamCalls()) {
    if (call.what != fake_cuda::Enqueued::kCopyToDevice) continue;
    EXPECT_NE(call.stream, nullptr);
    ++copies;
  }
  EXPECT_GT(copies, 10);  // weights, norms, angles
}

TEST_F(CudaBackendTest, AnAsynchronousFaultNamesItsStepAndTheKernelsThatItCanBe) {
  const std::unique_ptr<CudaBackend> backend = Reserved();
  StepDriver driver(backend.get(), kNumBlocks);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, {1, 2, 3}, 1);
  driver.Run();
  driver.AddDecodeRow(0);
  fake_cuda::FailLaunch(0, cudaErrorIllegalAddress, fake_cuda::Seen::kByWaiting);
  const StepTicket step = driver.Submit();
  driver.AddDecodeRow(0);
  const StepTicket next = driver.Submit();
  const std::string message(backend->Collect(step).status().message());
  EXPECT_THAT(
      message,
      AllOf(StartsWith("step 1 (1 rows, a graph of 1): CUDA: a kernel failed: "
                       "cudaErrorIllegalAddress"),
            HasSubstr("; one of: embedding, 2 x qkv matmul, 2 x "),
            HasSubstr("lm_head matmul, arg max; or one of the first of step 2 (CUDA_LAUNCH_BLOCKING=1")));
  EXPECT_EQ(backend->Collect(next).status().message(), message);
}

TEST_F(CudaBackendTest, WaitingForAStepThatFailedEndsAtOnceAndLeavesTheFaultToCollect) {
  const std::unique_ptr<CudaBackend> backend = Reserved(false);
  StepDriver driver(backend.get(), kNumBlocks);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, {1, 2, 3}, 1);
  fake_cuda::FailLaunch(1, cudaErrorIllegalAddress, fake_cuda::Seen::kByWaiting);
  const StepTicket ticket = driver.Submit();
  backend->WaitFor(ticket, INT64_C(600'000'000'000));
  EXPECT_FALSE(backend->Collect(ticket).ok());
}

// Waiting for a step fails whichever is at fault.
TEST_F(CudaBackendTest, AnAsynchronousFaultIsOfTheFirstStepWhoseResultsDidNotArrive) {
  const std::unique_ptr<CudaBackend> backend = Reserved();
  StepDriver driver(backend.get(), kNumBlocks);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, {1, 2, 3}, 1);
  const StepTicket finished = driver.Submit();
  driver.AddDecodeRow(0);
  fake_cuda::FailLaunch(0, cudaErrorIllegalAddress, fake_cuda::Seen::kByWaiting);
  driver.Submit();
  driver.AddDecodeRow(0);
  driver.Submit();
  EXPECT_THAT(std::string(backend->Collect(finished).status().message()), StartsWith("step 1 (1 rows"));
}

TEST_F(CudaBackendTest, AFaultThatIsSeenAtALaterLaunchIsNotBlamedOnThatKernelAlone) {
  const std::unique_ptr<CudaBackend> backend = Reserved(false);
  StepDriver driver(backend.get(), kNumBlocks);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, {1, 2, 3}, 1);
  fake_cuda::FailLaunch(2, cudaErrorIllegalAddress, fake_cuda::Seen::kByNextCall);
  const std::string message(backend->Collect(driver.Submit()).status().message());
  EXPECT_THAT(message,
              AllOf(StartsWith("step 0 (3 rows): CUDA: "), HasSubstr("attention: cudaErrorIllegalAddress"),
                    HasSubstr("or a kernel before it, since step 0")));
}

TEST_F(CudaBackendTest, AFaultOfABlockingLaunchNamesItsKernel) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  const std::unique_ptr<CudaBackend> backend = Reserved(false);
  unsetenv("CUDA_LAUNCH_BLOCKING");
  StepDriver driver(backend.get(), kNumBlocks);
  driver.Attach(0, {.temperature = 0.0f});
  driver.AddRows(0, {1, 2, 3}, 1);
  fake_cuda::FailLaunch(1, cudaErrorIllegalAddress, fake_cuda::Seen::kAtLaunch);
  EXPECT_EQ(
      backend->Collect(driver.Submit()).status().message(),
      "step 0 (3 rows): CUDA: embedding: cudaErrorIllegalAddress: an illegal memory access was encountered");
}

}  // namespace
}  // namespace ridge::worker
