#include "worker/loop/engine_core.h"

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

class EngineCoreTest : public ::testing::Test {
 protected:
  void Start(EngineConfig config) {
    config_ = config;
    ASSERT_TRUE(backend_.Reserve(config.num_blocks, {config.max_running, config.step_tokens}).ok());
    core_ = std::make_unique<EngineCore>(config, &backend_, &clock_, &metrics_,
                                         [this](std::vector<OutputItem> items) { Take(std::move(items)); });
  }

  SequenceId Add(std::vector<TokenId> prompt, int32_t max_tokens, std::vector<TokenId> stop_ids = {},
                 int64_t deadline_ns = INT64_MAX) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = ++last_id_;
    sequence->output = std::make_shared<OutputStream>();
    sequence->output->id = last_id_;
    sequence->spec.prompt = std::move(prompt);
    sequence->spec.max_tokens = max_tokens;
    sequence->spec.stop_ids = std::move(stop_ids);
    sequence->spec.deadline_ns = deadline_ns;
    core_->Add(std::move(sequence));
    return last_id_;
  }

  void Take(std::vector<OutputItem> items) {
    for (const OutputItem& item : items) {
      const SequenceId id = item.stream->id;
      ASSERT_FALSE(outcomes_.contains(id)) << "something came after the end of sequence " << id;
      if (item.has_token) tokens_[id].push_back(item.token.id);
      if (item.has_end) outcomes_[id] = item.outcome;
    }
  }

  bool Step() {
    absl::StatusOr<bool> worked = core_->RunOnce();
    EXPECT_TRUE(worked.ok());
    return *worked;
  }

  void RunToEnd() {
    for (int i = 0; i < 100000; ++i) {
      if (!Step()) return;
    }
    FAIL() << "the engine does not come to rest";
  }

  EngineConfig config_;
  FakeBackend backend_;
  FakeClock clock_;
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  std::unique_ptr<EngineCore> core_;
  SequenceId last_id_ = 0;
  std::map<SequenceId, std::vector<TokenId>> tokens_;
  std::map<SequenceId, Outcome> outcomes_;
};

std::vector<TokenId> Prompt(int32_t size, int32_t salt) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < size; ++i) prompt.push_back((i * 31 + salt * 7 + 1) % FakeBackend::kVocabSize);
  return prompt;
}

TEST_F(EngineCoreTest, GeneratesUntilMaxTokens) {
  Start({.num_blocks = 8, .max_running = 4, .step_tokens = 16, .chunk_tokens = 16});
  const SequenceId id = Add(Prompt(5, 0), 7);
  RunToEnd();
  EXPECT_THAT(tokens_[id], ElementsAreArray(FakeBackend::Generate(Prompt(5, 0), 7)));
  EXPECT_EQ(outcomes_.at(id).reason, FinishReason::kLength);
  EXPECT_EQ(core_->Load().free_blocks, 8);
  EXPECT_EQ(core_->Load().running, 0);
}

TEST_F(EngineCoreTest, EndsAtAStopIdWithAtMostOneWastedRow) {
  Start({.num_blocks = 8, .max_running = 4, .step_tokens = 16, .chunk_tokens = 16});
  const std::vector<TokenId> expected = FakeBackend::Generate(Prompt(5, 0), 20);
  const SequenceId id = Add(Prompt(5, 0), 20, {expected[3]});
  RunToEnd();
  EXPECT_THAT(tokens_[id], ElementsAreArray(expected.begin(), expected.begin() + 4));
  EXPECT_EQ(outcomes_.at(id).reason, FinishReason::kStop);
  EXPECT_LE(backend_.steps.size(), 5u);
  EXPECT_EQ(core_->Load().free_blocks, 8);
}

TEST_F(EngineCoreTest, SubmitsTheNextStepBeforeItReadsTheLast) {
  Start({.num_blocks = 8, .max_running = 4, .step_tokens = 16, .chunk_tokens = 16, .steps_in_flight = 2});
  Add(Prompt(5, 0), 7);
  Step();
  EXPECT_EQ(backend_.in_flight(), 1);
}

TEST_F(EngineCoreTest, GivesEachSequenceItsOwnTokensWhateverTheCompany) {
  struct Setting {
    int32_t num_blocks, max_running, step_tokens, chunk_tokens, steps_in_flight;
  };
  for (const Setting& setting : std::vector<Setting>{
           {400, 64, 512, 512, 2}, {400, 64, 64, 1, 2}, {400, 3, 7, 7, 2}, {12, 64, 64, 16, 2}, {400, 1, 64, 5, 1}}) {
    tokens_.clear();
    outcomes_.clear();
    backend_ = FakeBackend();
    Start({setting.num_blocks, setting.max_running, setting.step_tokens, setting.chunk_tokens,
           setting.steps_in_flight});
    std::map<SequenceId, std::vector<TokenId>> expected;
    std::mt19937 random(3);
    for (int i = 0; i < 40; ++i) {
      const int32_t prompt_tokens = 1 + random() % 100;
      const int32_t max_tokens = 1 + random() % 40;
      expected[Add(Prompt(prompt_tokens, i), max_tokens)] = FakeBackend::Generate(Prompt(prompt_tokens, i), max_tokens);
      for (uint32_t step = random() % 4; step > 0; --step) Step();
    }
    RunToEnd();
    EXPECT_EQ(tokens_, expected);
    EXPECT_EQ(core_->Load().free_blocks, setting.num_blocks);
  }
}

TEST_F(EngineCoreTest, CancelsWithinOneStepAndFreesTheBlocks) {
  Start({.num_blocks = 8, .max_running = 4, .step_tokens = 16, .chunk_tokens = 16});
  const SequenceId id = Add(Prompt(5, 0), 100);
  Step();
  Step();
  const size_t steps_before = backend_.steps.size();
  core_->Cancel(id, absl::CancelledError("client left"));
  EXPECT_EQ(outcomes_.at(id).status.code(), absl::StatusCode::kCancelled);
  RunToEnd();
  EXPECT_EQ(backend_.steps.size(), steps_before);
  EXPECT_EQ(core_->Load().free_blocks, 8);
}

TEST_F(EngineCoreTest, CancelsAWaitingSequence) {
  Start({.num_blocks = 8, .max_running = 1, .step_tokens = 16, .chunk_tokens = 16});
  Add(Prompt(5, 0), 10);
  const SequenceId waiting = Add(Prompt(5, 1), 10);
  Step();
  core_->Cancel(waiting, absl::CancelledError(""));
  RunToEnd();
  EXPECT_THAT(tokens_[waiting], IsEmpty());
  EXPECT_EQ(outcomes_.at(waiting).admitted_ns, 0);
  EXPECT_EQ(outcomes_.size(), 2u);
}

TEST_F(EngineCoreTest, EndsSequencesAtTheirDeadlineRunningOrWaiting) {
  Start({.num_blocks = 8, .max_running = 1, .step_tokens = 16, .chunk_tokens = 16});
  const int64_t deadline_ns = clock_.NowNs() + 1000;
  const SequenceId running = Add(Prompt(5, 0), 100, {}, deadline_ns);
  const SequenceId waiting = Add(Prompt(5, 1), 100, {}, deadline_ns);
  Step();
  EXPECT_THAT(outcomes_, IsEmpty());
  clock_.AdvanceNs(1000);
  Step();
  EXPECT_EQ(outcomes_.at(running).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(outcomes_.at(waiting).status.code(), absl::StatusCode::kDeadlineExceeded);
  RunToEnd();
  EXPECT_EQ(core_->Load().free_blocks, 8);
}

TEST_F(EngineCoreTest, EverySequenceEndsOnceUnderRandomCancellation) {
  Start({.num_blocks = 30, .max_running = 5, .step_tokens = 16, .chunk_tokens = 8});
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    switch (random() % 4) {
      case 0:
        Add(Prompt(1 + random() % 60, i), 1 + random() % 30, {static_cast<TokenId>(random() % 1000)});
        break;
      case 1:
        if (last_id_ > 0) core_->Cancel(1 + random() % last_id_, absl::CancelledError(""));
        break;
      case 2:
        if (last_id_ > 0) {
          const SequenceId id = 1 + random() % last_id_;
          core_->FinishStopped(id);
          outcomes_.emplace(id, Outcome{});  // its sink has heard already
        }
        break;
      default:
        Step();
    }
  }
  RunToEnd();
  EXPECT_EQ(outcomes_.size(), last_id_);
  EXPECT_EQ(core_->Load().free_blocks, 30);
  EXPECT_EQ(core_->Load().running, 0);
  EXPECT_EQ(core_->Load().queued, 0);
}

TEST_F(EngineCoreTest, ReportsALostDevice) {
  Start({.num_blocks = 8, .max_running = 1, .step_tokens = 16, .chunk_tokens = 16});
  backend_.fault = absl::InternalError("illegal address");
  Add(Prompt(5, 0), 10);
  EXPECT_EQ(core_->RunOnce().status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ridge::worker
