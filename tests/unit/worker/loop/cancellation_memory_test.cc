// Ten thousand streams of a running engine, each cancelled at a random point of its life, leave the process
// as large as two thousand did; and a request of many choices holds its prompt once.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "worker/backend/simulated/simulated_backend.h"
#include "worker/loop/engine.h"
#include "worker/loop/engine_metrics.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsTheProcesssOwn = false;  // sanitizers keep what was freed
#else
constexpr bool kMemoryIsTheProcesssOwn = true;
#endif

// What is allocated and not freed. The process keeps more of the system's memory: as much as the longest
// queue of tokens took that the output thread ever had before it.
int64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

// While the output thread ends its last round.
int64_t RestingBytes() {
  int64_t least = AllocatedBytes();
  for (int i = 0; i < 20; ++i) {
    absl::SleepFor(absl::Milliseconds(2));
    least = std::min(least, AllocatedBytes());
  }
  return least;
}

class Stream : public TokenSink {
 public:
  bool OnToken(const TokenEvent&) override {
    tokens.fetch_add(1);
    return true;
  }
  void OnEnd(const Outcome& outcome) override {
    status = outcome.status;
    ended.Notify();
  }

  SequenceId id = 0;
  std::atomic<int> tokens = 0;
  absl::Status status;
  absl::Notification ended;
};

TEST(CancellationMemoryTest, TenThousandCancelledStreamsLeaveTheProcessAsLargeAsTwoThousand) {
  constexpr EngineConfig kConfig{
      .num_blocks = 2000, .max_running = 64, .step_tokens = 512, .chunk_tokens = 256};
  const ModelConfig model = OpenModel("synthetic:qwen2.5-0.5b").value()->config();
  SimulatedBackend device(LoadCard("zero").value(), model, SimulatedOptions{});
  ASSERT_TRUE(device.Reserve(kConfig.num_blocks, {kConfig.max_running, kConfig.step_tokens}).ok());
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  Engine engine(kConfig, &device, RealClock(), &metrics);
  std::mt19937 random(11);
  std::vector<std::shared_ptr<Stream>> open;
  int64_t early = 0, tokens = 0;
  const auto add = [&] {
    SequenceSpec spec;
    for (uint32_t i = 1 + random() % 600; i > 0; --i)
      spec.prompt.push_back(static_cast<TokenId>(random() % 100'000));
    spec.max_tokens = 20'000;  // hardly one ends by itself, where this thread stands still for a while
    open.push_back(std::make_shared<Stream>());
    open.back()->id = engine.Submit(std::move(spec), open.back());
  };
  // Cancels those that are open too: what the output thread has not yet done is no memory that is kept.
  const auto rest = [&] {
    for (const auto& stream : open) engine.Cancel(stream->id, absl::CancelledError(""));
    for (const auto& stream : open) stream->ended.WaitForNotification();
    open.clear();
    for (int i = 0; i < 1000 && engine.Load().free_blocks != kConfig.num_blocks; ++i)
      absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(engine.Load().free_blocks, kConfig.num_blocks);
  };
  for (int cancelled = 0; cancelled < 10'000;) {
    if (early == 0 && cancelled == 2000) {
      rest();
      early = RestingBytes();
    }
    while (open.size() < 100) add();
    const size_t i = random() % open.size();
    const std::shared_ptr<Stream> stream = open[i];
    open[i] = open.back();
    open.pop_back();
    engine.Cancel(stream->id, absl::CancelledError("the client left"));
    ASSERT_TRUE(stream->ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
    cancelled += absl::IsCancelled(stream->status);
    ASSERT_TRUE(stream->status.ok() || absl::IsCancelled(stream->status)) << stream->status;
    tokens += stream->tokens.load();
  }
  rest();
  const int64_t late = RestingBytes();
  std::printf("%.1f MiB after 2,000 streams, %.1f after 10,000; %ld tokens\n",
              static_cast<double>(early) / (1 << 20), static_cast<double>(late) / (1 << 20),
              static_cast<long>(tokens));
  EXPECT_GT(tokens, 10'000);  // most had begun
  // A prompt alone has 1,200 bytes: one kept from each stream would be 9 MiB.
  if (kMemoryIsTheProcesssOwn) {
    EXPECT_LT(late - early, 1 << 20);
  }
}

TEST(CancellationMemoryTest, ChoicesHoldThePromptOnce) {
  if (!kMemoryIsTheProcesssOwn) GTEST_SKIP() << "a sanitizer's memory is not the process's own";
  constexpr int32_t kPromptTokens = 100'000;
  constexpr EngineConfig kConfig{
      .num_blocks = 8000, .max_running = 128, .step_tokens = 512, .chunk_tokens = 512};
  SimulatedBackend device(LoadCard("zero").value(), OpenModel("synthetic:qwen2.5-0.5b").value()->config(),
                          SimulatedOptions{});
  ASSERT_TRUE(device.Reserve(kConfig.num_blocks, {kConfig.max_running, kConfig.step_tokens}).ok());
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  Engine engine(kConfig, &device, RealClock(), &metrics);
  SequenceSpec spec;
  spec.prompt.assign(kPromptTokens, 7);
  spec.max_tokens = 50;
  const auto stream = std::make_shared<Stream>();
  const int64_t before = AllocatedBytes();
  engine.Submit(std::move(spec), stream, 128);
  // 128 of them would be 51 MB. The engine's thread may have begun.
  EXPECT_LT(AllocatedBytes() - before, 64 * kPromptTokens * 4);
  stream->ended.WaitForNotification();
  EXPECT_EQ(stream->tokens.load(), 128 * 50);
}

}  // namespace
}  // namespace ridge::worker
