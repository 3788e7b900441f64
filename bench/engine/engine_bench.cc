// What the engine itself costs, on a simulated device that takes no time: the engine thread's part of a step,
// the rate of scheduling and output together, and the prefix cache. One JSON object a line.
//
//   engine-bench           everything, seven rounds for the prefix cache's share of the thread's time
//   engine-bench ROUNDS    these alone, so many (4 s each)
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "common/check.h"
#include "worker/backend/simulated/simulated_backend.h"
#include "worker/decision/sequence_memory.h"
#include "worker/loop/engine.h"
#include "worker/loop/engine_core.h"
#include "worker/loop/engine_metrics.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

constexpr int32_t kRunning = 256;
constexpr int32_t kPromptTokens = 64;
constexpr int32_t kNewTokens = 1024;
constexpr EngineConfig kConfig{
    .num_blocks = kRunning * 80, .max_running = kRunning, .step_tokens = 2048, .chunk_tokens = 512};

double NowUs() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::unique_ptr<SimulatedBackend> Device() {
  const ModelConfig model = OpenModel("synthetic:qwen2.5-1.5b").value()->config();
  auto backend = std::make_unique<SimulatedBackend>(LoadCard("zero").value(), model, SimulatedOptions{});
  RIDGE_CHECK(backend->Reserve(kConfig.num_blocks, {kConfig.max_running, kConfig.step_tokens}).ok());
  return backend;
}

SequenceSpec Spec(int32_t number) {
  SequenceSpec spec;
  for (int32_t i = 0; i < kPromptTokens; ++i) spec.prompt.push_back((number * 997 + i) % 150'000);
  spec.max_tokens = kNewTokens;
  return spec;
}

// The engine thread alone: plan, submit, collect and hand out a step of 256 decode rows.
void MeasureStep(bool prefix_cache) {
  const std::unique_ptr<SimulatedBackend> device = Device();
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  EngineConfig config = kConfig;
  config.policy.prefix_cache = prefix_cache;
  EngineCore core(config, device.get(), RealClock(), &metrics, [](const std::vector<OutputItem>&) {});
  for (int32_t i = 0; i < kRunning; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = static_cast<SequenceId>(i) + 1;
    sequence->spec = Spec(i);
    sequence->output = std::make_shared<OutputStream>();
    core.Add(std::move(sequence));
  }
  for (int i = 0; i < 50; ++i) RIDGE_CHECK(core.RunOnce().value());
  constexpr int kSteps = 800;
  const int64_t rows = core.totals().rows;
  const double begin_us = NowUs();
  for (int i = 0; i < kSteps; ++i) RIDGE_CHECK(core.RunOnce().value());
  const double step_us = (NowUs() - begin_us) / kSteps;
  RIDGE_CHECK(core.totals().rows - rows == int64_t{kSteps} * kRunning);
  std::printf("{\"step_us\": %.1f, \"running\": %d, \"prefix_cache\": %s}\n", step_us, kRunning,
              prefix_cache ? "true" : "false");
}

// Counts, as a stream without text would.
class CountingSink : public TokenSink {
 public:
  CountingSink(std::atomic<int64_t>* tokens, absl::BlockingCounter* open) : tokens_(tokens), open_(open) {}
  bool OnToken(const TokenEvent&) override {
    tokens_->fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void OnEnd(const Outcome&) override { open_->DecrementCount(); }

 private:
  std::atomic<int64_t>* const tokens_;
  absl::BlockingCounter* const open_;
};

// Engine thread and output thread together.
void MeasureEngine() {
  const std::unique_ptr<SimulatedBackend> device = Device();
  MetricsRegistry registry;
  EngineMetrics metrics(&registry);
  std::atomic<int64_t> tokens = 0;
  absl::BlockingCounter open(2 * kRunning);
  Engine engine(kConfig, device.get(), RealClock(), &metrics);
  const double begin_us = NowUs();
  for (int32_t i = 0; i < 2 * kRunning; ++i)
    engine.Submit(Spec(i), std::make_shared<CountingSink>(&tokens, &open));
  open.Wait();
  std::printf("{\"tokens_per_second\": %.0f, \"tokens\": %ld}\n",
              static_cast<double>(tokens.load()) / (NowUs() - begin_us) * 1e6,
              static_cast<long>(tokens.load()));
}

// Prompts that are not found: look-up, and publishing of each block; then prompts that are.
void MeasurePrefixCache() {
  constexpr int32_t kPrompts = 60;
  constexpr int32_t kBlocks = 256;  // of each prompt: 4,096 tokens
  BlockPool pool(kPrompts * kBlocks);
  PrefixCache cache(&pool);
  std::vector<std::vector<TokenId>> prompts(kPrompts);
  for (int32_t p = 0; p < kPrompts; ++p) {
    for (int32_t i = 0; i < kBlocks * kBlockTokens; ++i) prompts[p].push_back((p * 50'021 + i * 7) % 150'000);
  }
  double publish_us = 0, miss_us = 0, hit_us = 0;
  for (const std::vector<TokenId>& prompt : prompts) {
    double begin_us = NowUs();
    const PrefixCache::Match match = cache.Find("", prompt);
    miss_us += NowUs() - begin_us;
    const std::vector<BlockId> blocks = pool.Allocate(kBlocks);
    begin_us = NowUs();
    cache.Publish(match.node, prompt, blocks);
    publish_us += NowUs() - begin_us;
    pool.Release(blocks);
  }
  for (const std::vector<TokenId>& prompt : prompts) {
    const double begin_us = NowUs();
    const PrefixCache::Match match = cache.Find("", prompt);
    hit_us += NowUs() - begin_us;
    RIDGE_CHECK(match.blocks.size() == kBlocks);
    pool.Release(match.blocks);
  }
  std::printf("{\"publish_us_per_block\": %.3f, \"hit_us_per_block\": %.3f, \"miss_us_per_prompt\": %.3f}\n",
              publish_us / (kPrompts * kBlocks), hit_us / (kPrompts * kBlocks), miss_us / kPrompts);
}

// A sequence of 131,072 tokens whose blocks another one published before: its chain goes on from that one's.
// What publishing a decoded block costs while blocks are evicted.
void MeasureBorrowedChain() {
  constexpr int32_t kBlocks = 8192;
  constexpr int32_t kDecoded = 64;
  BlockPool pool(2 * kBlocks + 2 * kDecoded);
  PrefixCache cache(&pool);
  SequenceMemory memory(MemoryPolicy::kOnDemand, true, 0, &pool, &cache);
  Sequence sequence;
  for (int32_t i = 0; i < kBlocks * kBlockTokens; ++i) sequence.spec.prompt.push_back((i * 7) % 150'000);
  const std::vector<BlockId> lent = pool.Allocate(kBlocks);
  cache.Publish({0, ""}, sequence.spec.prompt, lent);
  sequence.blocks = pool.Allocate(kBlocks + kDecoded);
  sequence.collected_rows = kBlocks * kBlockTokens;
  memory.Publish(&sequence);
  const std::vector<BlockId> idle = pool.Allocate(kDecoded);
  cache.Publish({0, "other"}, absl::MakeConstSpan(sequence.spec.prompt).first(kDecoded * kBlockTokens), idle);
  pool.Release(idle);
  double publish_us = 0;
  for (int32_t i = 0; i < kDecoded; ++i) {
    pool.Allocate(1);
    sequence.generated.resize(sequence.generated.size() + kBlockTokens, i);
    sequence.collected_rows += kBlockTokens;
    const double begin_us = NowUs();
    memory.Publish(&sequence);
    publish_us += NowUs() - begin_us;
  }
  RIDGE_CHECK(cache.evictions() == kDecoded && sequence.published_blocks == kBlocks + kDecoded);
  std::printf("{\"publish_us_of_borrowed_chain\": %.3f, \"chain_blocks\": %d}\n", publish_us / kDecoded,
              kBlocks);
}

double ThreadUs() {
  timespec time;
  RIDGE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// A simulated H200 that says what of its thread's time was its own.
class TimedDevice : public Backend {
 public:
  explicit TimedDevice(const EngineConfig& config)
      : device_(LoadCard("h200").value(), OpenModel("synthetic:qwen2.5-1.5b").value()->config(),
                SimulatedOptions{}) {
    RIDGE_CHECK(device_.Reserve(config.num_blocks, {config.max_running, config.step_tokens}).ok());
  }

  const BackendInfo& Info() const override { return device_.Info(); }
  absl::Status Reserve(int32_t, const BackendLimits&) override { return absl::OkStatus(); }
  StepTicket Submit(const StepPlan& plan) override {
    busy_us -= ThreadUs();
    const StepTicket ticket = device_.Submit(plan);
    busy_us += ThreadUs();
    return ticket;
  }
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override {
    busy_us -= ThreadUs();
    absl::StatusOr<StepResult> result = device_.Collect(ticket);
    busy_us += ThreadUs();
    return result;
  }

  double busy_us = 0;

 private:
  SimulatedBackend device_;
};

// The engine thread at the pace of a simulated H200: 256 sequences run, and each that ends is replaced by one
// with a prompt that nobody had before.
class UnsharedLoad {
 public:
  explicit UnsharedLoad(bool prefix_cache)
      : config_(Config(prefix_cache)),
        device_(config_),
        core_(config_, &device_, RealClock(), &metrics_, [this](const std::vector<OutputItem>& items) {
          for (const OutputItem& item : items) ended_ += item.has_end;
        }) {
    for (int32_t i = 0; i < kRunning; ++i) Add();
  }

  // Until one step more was collected.
  void Step() {
    for (; ended_ > 0; --ended_) Add();
    const double begin_us = ThreadUs() - device_.busy_us;
    const int64_t steps = core_.totals().steps;
    while (core_.totals().steps == steps) RIDGE_CHECK(core_.RunOnce().value());
    busy_us_ += ThreadUs() - device_.busy_us - begin_us;
  }

  // Of the thread, without the device's.
  double TakeBusyUs() { return std::exchange(busy_us_, 0); }

 private:
  static EngineConfig Config(bool prefix_cache) {
    EngineConfig config = kConfig;
    config.policy.prefix_cache = prefix_cache;
    return config;
  }

  void Add() {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = ++last_id_;
    for (int32_t i = 0; i < 512; ++i)
      sequence->spec.prompt.push_back(
          static_cast<TokenId>((last_id_ * 997 + static_cast<SequenceId>(i) * 7) % 150'000));
    sequence->spec.max_tokens = 64 + static_cast<int32_t>(last_id_ % 128);
    sequence->output = std::make_shared<OutputStream>();
    core_.Add(std::move(sequence));
  }

  const EngineConfig config_;
  TimedDevice device_;
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  EngineCore core_;
  int32_t ended_ = 0;
  SequenceId last_id_ = 0;
  double busy_us_ = 0;
};

// What the prefix cache takes of the engine thread's time where it finds nothing: an engine with and one
// without take turns, a step each, so that both see the same moments of the machine.
void MeasureCacheShare(int rounds) {
  UnsharedLoad with(true), without(false);
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      with.Step();
      without.Step();
    }
  };
  run(200);  // until blocks are evicted
  with.TakeBusyUs();
  without.TakeBusyUs();
  std::vector<double> shares;
  for (int round = 0; round < rounds; ++round) {
    constexpr int kSteps = 250;
    const double begin_us = NowUs();
    run(kSteps);
    const double wall_us = NowUs() - begin_us, with_us = with.TakeBusyUs(), without_us = without.TakeBusyUs();
    shares.push_back((with_us - without_us) / wall_us);
    std::printf("{\"busy_us\": %.1f, \"busy_us_without_cache\": %.1f, \"step_us\": %.0f}\n", with_us / kSteps,
                without_us / kSteps, wall_us / kSteps);
  }
  std::sort(shares.begin(), shares.end());
  std::printf("{\"prefix_cache_share\": %.5f, \"lowest\": %.5f, \"highest\": %.5f}\n",
              shares[shares.size() / 2], shares.front(), shares.back());
}

}  // namespace
}  // namespace ridge::worker

int main(int argc, char** argv) {
  if (argc > 1) {
    ridge::worker::MeasureCacheShare(std::max(std::atoi(argv[1]), 1));
    return 0;
  }
  ridge::worker::MeasureStep(true);
  ridge::worker::MeasureStep(false);
  ridge::worker::MeasureEngine();
  ridge::worker::MeasurePrefixCache();
  ridge::worker::MeasureBorrowedChain();
  ridge::worker::MeasureCacheShare(7);
  return 0;
}
