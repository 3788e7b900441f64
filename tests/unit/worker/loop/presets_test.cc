// Each preset really does the work that its idea costs: rows, padding and positions as the backend counts
// them.
#include <memory>
#include <vector>

#include "bench/workload/draw.h"
#include "gtest/gtest.h"
#include "tests/support/simulated_engine.h"

namespace ridge::worker {
namespace {

constexpr int32_t kContext = 4352;  // of the longest request

class PresetsTest : public testing::Test {
 protected:
  void Start(const char* preset, int32_t max_running, int32_t step_tokens = 1 << 18) {
    StartWith({.num_blocks = max_running * kContext / kBlockTokens,
               .max_running = max_running,
               .step_tokens = step_tokens,
               .chunk_tokens = 512,
               .policy = PresetPolicy(preset),
               .max_context = kContext});
  }

  void StartWith(const EngineConfig& config) { engine_ = std::make_unique<SimulatedEngine>("zero", config); }

  void Add(int32_t prompt_tokens, int32_t max_tokens) { engine_->Add({prompt_tokens, max_tokens}); }

  void AddMixedDraw(size_t count) {
    for (const bench::WorkItem& item : bench::MixedDraw(0, static_cast<int32_t>(count)).items)
      Add(item.prompt_tokens, item.max_tokens);
  }

  EngineCore& core() { return engine_->core(); }

  bool Step() {
    const bool worked = engine_->Step();
    core().CheckInvariant();
    return worked;
  }

  void RunToEnd() {
    while (Step()) {
    }
    EXPECT_EQ(engine_->ended(), engine_->requests());
  }

  std::unique_ptr<SimulatedEngine> engine_;
};

TEST_F(PresetsTest, NaiveComputesTheWholeSequenceForEveryToken) {
  Start("naive", 1);
  Add(16, 256);
  RunToEnd();
  EXPECT_EQ(core().totals().rows, 36'736);
  Add(4096, 256);
  RunToEnd();
  EXPECT_EQ(core().totals().rows, 36'736 + 1'081'216);
  EXPECT_EQ(core().totals().steps, 512);
  EXPECT_EQ(engine_->tokens(), 512);
}

TEST_F(PresetsTest, NaiveTakesOneRequestAtATime) {
  Start("naive", 4);
  Add(16, 10);
  Add(8, 10);
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(core().totals().rows, 16 + 17 + 18 + 19 + 20);
  RunToEnd();
}

TEST_F(PresetsTest, CachedComputesEachPositionOnce) {
  Start("cached", 1);
  Add(4096, 256);
  RunToEnd();
  EXPECT_EQ(core().totals().rows, 4096 + 255);
  EXPECT_EQ(core().totals().padded_rows, 0);
}

struct Batch {
  size_t size;
  double padding_share;
};

class BatchedTest : public PresetsTest, public testing::WithParamInterface<Batch> {};

TEST_P(BatchedTest, PaddingIsTheShareOfTheReservedPositionsThatItWasInTheSeries) {
  const auto size = static_cast<int32_t>(GetParam().size);
  Start("batched", size);
  AddMixedDraw(GetParam().size);
  Step();
  // One step computes all prompts, padded to the longest, in memory for B x (longest + 256).
  const int64_t reserved = (size * kContext / kBlockTokens - core().Load().free_blocks) * kBlockTokens;
  EXPECT_EQ(reserved, int64_t{size} * (4096 + 256));
  EXPECT_EQ(core().totals().rows, int64_t{size} * 4096);
  EXPECT_NEAR(static_cast<double>(core().totals().padded_rows) / static_cast<double>(reserved),
              GetParam().padding_share, 0.0005);
  // What has finished goes on being computed until the last has.
  const EngineTotals prompts = core().totals();
  RunToEnd();
  const EngineTotals& all = core().totals();
  EXPECT_EQ(all.steps - prompts.steps, 255);
  EXPECT_EQ(all.rows - prompts.rows, 255 * size);
  EXPECT_EQ(all.padded_rows - prompts.padded_rows, 255 * size - (engine_->tokens() - size));
  // Each row, padded or not, reads the width of the rectangle: 4,097 to 4,351 positions.
  EXPECT_EQ(all.kv_positions - prompts.kv_positions, int64_t{size} * 255 * (4097 + 4351) / 2);
  EXPECT_EQ(core().Load().free_blocks, size * kContext / kBlockTokens);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BatchedTest, testing::Values(Batch{8, 0.492}, Batch{32, 0.625}),
                         [](const auto& test) { return std::to_string(test.param.size); });

TEST_F(PresetsTest, BatchedTakesNobodyInUntilTheBatchHasDrained) {
  Start("batched", 2);
  Add(16, 4);
  Add(16, 8);
  Add(16, 4);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(core().Load().queued, i == 0 ? 3 : 1);
    Step();
  }
  EXPECT_EQ(core().Load().queued, 1);
  Step();
  EXPECT_EQ(core().Load().queued, 0);
  RunToEnd();
}

TEST_F(PresetsTest, ContinuousTakesInAtEveryStepAndReadsTheWidestRow) {
  Start("continuous", 4);
  Add(1000, 50);
  Step();
  Add(16, 3);
  Step();
  EXPECT_EQ(core().Load().running, 2);
  EngineTotals before = core().totals();
  Step();
  EXPECT_EQ(core().totals().rows - before.rows, 2);
  EXPECT_EQ(core().totals().kv_positions - before.kv_positions, 2 * 1001);
  before = core().totals();
  Step();
  EXPECT_EQ(core().totals().kv_positions - before.kv_positions, 2 * 1002);
  RunToEnd();
}

TEST_F(PresetsTest, ContinuousPadsThePromptsThatItAdmitsTogether) {
  Start("continuous", 4);
  Add(1000, 5);
  Add(16, 5);
  Add(100, 5);
  Step();
  EXPECT_EQ(core().totals().rows, 3000);
  EXPECT_EQ(core().totals().padded_rows, 984 + 900);
  // A slot holds a whole context, whatever its sequence needs.
  EXPECT_EQ(core().Load().free_blocks, kContext / kBlockTokens);
  RunToEnd();
}

TEST_F(PresetsTest, WholePromptsThatExceedAStepHoldUpDecoding) {
  Start("paged", 4, 512);
  Add(100, 50);
  Step();
  Step();
  Add(1000, 5);
  EngineTotals before = core().totals();
  Step();
  EXPECT_EQ(core().totals().rows - before.rows, 512);
  Step();
  EXPECT_EQ(core().totals().rows - before.rows, 1000);
  Step();
  EXPECT_EQ(core().totals().rows - before.rows, 1002);
  RunToEnd();
}

TEST_F(PresetsTest, PagedReadsEachRowsOwnPositionsAndReservesItsOwnLimit) {
  Start("paged", 4);
  Add(1000, 50);
  Add(16, 3);
  Step();
  EXPECT_EQ(core().Load().free_blocks, 4 * kContext / kBlockTokens - 66 - 2);
  const EngineTotals before = core().totals();
  Step();
  EXPECT_EQ(core().totals().kv_positions - before.kv_positions, 1001 + 17);
  RunToEnd();
}

TEST_F(PresetsTest, ChunkedAlternatesChunksAndDecodeSteps) {
  Start("chunked", 4, 512);
  Add(16, 50);
  Step();
  Step();
  Add(1100, 5);
  std::vector<int64_t> rows;
  for (int i = 0; i < 6; ++i) {
    const int64_t before = core().totals().rows;
    Step();
    rows.push_back(core().totals().rows - before);
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{512, 1, 512, 1, 76, 2}));
  RunToEnd();
}

TEST_F(PresetsTest, FusedPutsChunksAndDecodeRowsIntoOneStep) {
  Start("fused", 4, 512);
  Add(16, 50);
  Step();
  Step();
  Add(1100, 5);
  std::vector<int64_t> rows;
  for (int i = 0; i < 4; ++i) {
    const int64_t before = core().totals().rows;
    Step();
    rows.push_back(core().totals().rows - before);
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{512, 512, 79, 2}));
  EXPECT_EQ(core().totals().padded_rows, 0);
  RunToEnd();
}

TEST_F(PresetsTest, EveryMemoryServesFromAPoolOfOneBlock) {
  for (const char* memory : {"scratch", "contiguous", "padded", "slots", "reserved", "on_demand"}) {
    for (const char* admission : {"one", "batch", "continuous"}) {
      const absl::StatusOr<EnginePolicy> policy =
          PolicyOf({.memory = memory, .admission = admission, .prefix_cache = "off"});
      if (!policy.ok()) continue;  // padded memory needs a batch
      for (const int32_t max_running : {1, 3}) {
        SCOPED_TRACE(testing::Message() << memory << " " << admission << " " << max_running);
        // A step of as few rows as may be, chunks less than a block, a context of one block.
        StartWith({.num_blocks = 1,
                   .max_running = max_running,
                   .step_tokens = max_running,
                   .chunk_tokens = 1,
                   .policy = *policy,
                   .max_context = kBlockTokens});
        Add(kBlockTokens, 1);
        Add(1, kBlockTokens);
        Add(7, 5);
        RunToEnd();
        EXPECT_EQ(engine_->tokens(), 1 + kBlockTokens + 5);
        EXPECT_EQ(core().Load().free_blocks, 1);
      }
    }
  }
}

TEST_F(PresetsTest, EveryPresetServesTheMixedDraw) {
  for (const std::string& preset : PresetNames()) {
    SCOPED_TRACE(preset);
    Start(preset.c_str(), 8, 8 * 4096);
    AddMixedDraw(preset == "naive" ? 4 : 40);
    RunToEnd();
    EXPECT_EQ(core().Load().free_blocks, 8 * kContext / kBlockTokens);
  }
}

}  // namespace
}  // namespace ridge::worker
