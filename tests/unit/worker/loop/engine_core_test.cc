#include "worker/loop/engine_core.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
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

  std::unique_ptr<Sequence> NewSequence(std::vector<TokenId> prompt, int32_t max_tokens) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = ++last_id_;
    sequence->output = std::make_shared<OutputStream>();
    sequence->output->id = last_id_;
    sequence->spec.prompt = std::move(prompt);
    sequence->spec.max_tokens = max_tokens;
    return sequence;
  }

  SequenceId Add(std::vector<TokenId> prompt, int32_t max_tokens, std::vector<TokenId> stop_ids = {},
                 int64_t deadline_ns = INT64_MAX) {
    auto sequence = NewSequence(std::move(prompt), max_tokens);
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
    core_->CheckInvariant();
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
  Start({.num_blocks = 8, .max_running = 4, .step_tokens = 16, .chunk_tokens = 16});
  Add(Prompt(5, 0), 7);
  Step();
  EXPECT_EQ(backend_.in_flight(), 1);
}

TEST_F(EngineCoreTest, GivesEachSequenceItsOwnTokensWhateverTheCompany) {
  struct Setting {
    int32_t num_blocks, max_running, step_tokens, chunk_tokens;
    LaunchPolicy launch;
  };
  for (const Setting& setting : std::vector<Setting>{{400, 64, 512, 512, LaunchPolicy::kGraph},
                                                     {400, 64, 64, 1, LaunchPolicy::kGraph},
                                                     {400, 3, 7, 7, LaunchPolicy::kGraph},
                                                     {12, 64, 64, 16, LaunchPolicy::kGraph},
                                                     {400, 1, 64, 5, LaunchPolicy::kStream}}) {
    tokens_.clear();
    outcomes_.clear();
    backend_ = FakeBackend();
    Start({.num_blocks = setting.num_blocks,
           .max_running = setting.max_running,
           .step_tokens = setting.step_tokens,
           .chunk_tokens = setting.chunk_tokens,
           .policy = {.launch = setting.launch}});
    std::map<SequenceId, std::vector<TokenId>> expected;
    std::mt19937 random(3);
    for (int i = 0; i < 40; ++i) {
      const int32_t prompt_tokens = 1 + random() % 100;
      const int32_t max_tokens = 1 + random() % 40;
      expected[Add(Prompt(prompt_tokens, i), max_tokens)] =
          FakeBackend::Generate(Prompt(prompt_tokens, i), max_tokens);
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

// Tiny pools, shared beginnings, tenants and priorities, cancellations at any point: each sequence's tokens
// are those that it would have had alone, as far as it came, and nothing is lost. The invariants are checked
// after each step.
TEST_F(EngineCoreTest, SharingPreemptionAndCancellationChangeNoTokens) {
  int64_t preempted = 0;
  int64_t found = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    tokens_.clear();
    outcomes_.clear();
    backend_ = FakeBackend();
    last_id_ = 0;
    const int32_t num_blocks = 8 + random() % 40;
    const int32_t max_running = 1 + random() % 12;
    Start({.num_blocks = num_blocks,
           .max_running = max_running,
           .step_tokens = max_running + static_cast<int32_t>(random() % 40),
           .chunk_tokens = 1 + static_cast<int32_t>(random() % 40),
           .policy = {.launch = random() % 2 == 0 ? LaunchPolicy::kGraph : LaunchPolicy::kStream,
                      .prefix_cache = random() % 4 != 0}});
    std::map<SequenceId, std::vector<TokenId>> expected;
    std::set<SequenceId> cancelled;
    for (int i = 0; i < 300; ++i) {
      const uint32_t choice = random() % 8;
      if (choice < 3) {
        // Beginnings from a few texts; together with what is generated it fits the smallest pool.
        std::vector<TokenId> prompt = Prompt(1 + random() % 80, random() % 3);
        const int32_t max_tokens = 1 + random() % 48;
        auto sequence = NewSequence(prompt, max_tokens);
        sequence->spec.tenant = std::string(1, static_cast<char>('a' + random() % 3));
        sequence->spec.cache_salt = random() % 5 == 0 ? "other" : "";
        sequence->spec.priority = static_cast<int32_t>(random() % 2);
        expected[sequence->id] = FakeBackend::Generate(prompt, max_tokens);
        core_->Add(std::move(sequence));
      } else if (choice == 3 && last_id_ > 0) {
        const SequenceId id = 1 + random() % last_id_;
        if (!outcomes_.contains(id)) cancelled.insert(id);
        core_->Cancel(id, absl::CancelledError(""));
      } else {
        Step();
      }
    }
    RunToEnd();
    ASSERT_EQ(outcomes_.size(), last_id_);
    for (const auto& [id, all] : expected) {
      const auto& got = tokens_[id];
      ASSERT_LE(got.size(), all.size());
      ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin())) << "sequence " << id;
      ASSERT_TRUE(cancelled.contains(id) || got.size() == all.size()) << "sequence " << id;
    }
    EXPECT_EQ(core_->Load().free_blocks, num_blocks);
    preempted += static_cast<int64_t>(registry_.Counter("ridge_num_preemptions_total", "").Value());
    found += static_cast<int64_t>(registry_.Counter("ridge_prefix_cache_hits_total", "").Value());
  }
  EXPECT_GT(preempted, 0);
  EXPECT_GT(found, 0);
}

TEST_F(EngineCoreTest, ReportsALostDevice) {
  Start({.num_blocks = 8, .max_running = 1, .step_tokens = 16, .chunk_tokens = 16});
  backend_.fault = absl::InternalError("illegal address");
  Add(Prompt(5, 0), 10);
  EXPECT_EQ(core_->RunOnce().status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ridge::worker
