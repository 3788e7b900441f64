#include "worker/loop/engine_core.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/status.h"
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

  // A request of several choices; the id of its first one.
  SequenceId AddChoices(const SequenceSpec& like, int32_t num_choices) {
    const auto spec = std::make_shared<SequenceSpec>(like);
    std::vector<std::unique_ptr<Sequence>> choices;
    const auto output = std::make_shared<OutputStream>();
    output->id = last_id_ + 1;
    output->choices.resize(static_cast<size_t>(num_choices));
    for (int32_t i = 0; i < num_choices; ++i) {
      choices.push_back(std::make_unique<Sequence>(spec, i));
      choices.back()->id = ++last_id_;
      choices.back()->output = output;
    }
    core_->Add(std::move(choices));
    return output->id;
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
      if (item.has_end && !item.outcome.status.ok()) {
        for (size_t i = 0; i < item.stream->choices.size(); ++i)
          outcomes_.try_emplace(item.stream->id + i, item.outcome);
        continue;
      }
      for (const PromptLogprob& scored : item.prompt_logprobs)
        scores_[item.stream->id].push_back(scored.logprob);
      if (!item.has_token) continue;
      const SequenceId id = item.stream->id + static_cast<SequenceId>(item.token.choice);
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
  std::map<SequenceId, std::vector<float>> scores_;
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

TEST_F(EngineCoreTest, WhoWaitsTooLongForTheFirstStepIsTurnedAway) {
  Start({.num_blocks = 8, .max_running = 1, .step_tokens = 16, .chunk_tokens = 16, .queue_timeout_ns = 1000});
  const SequenceId running = Add(Prompt(5, 0), 20);
  const SequenceId waiting = Add(Prompt(5, 1), 20);
  Step();
  clock_.AdvanceNs(999);
  Step();
  EXPECT_THAT(outcomes_, IsEmpty());
  clock_.AdvanceNs(1);
  Step();
  EXPECT_EQ(outcomes_.at(waiting).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(outcomes_.at(waiting).status), absl::Seconds(2));
  RunToEnd();
  EXPECT_TRUE(outcomes_.at(running).status.ok());
  EXPECT_EQ(tokens_[running].size(), 20u);
}

TEST_F(EngineCoreTest, AQueueTimeoutOfCenturiesIsNotOver) {
  Start({.num_blocks = 8,
         .max_running = 1,
         .step_tokens = 16,
         .chunk_tokens = 16,
         .queue_timeout_ns = INT64_MAX - 1});
  clock_.AdvanceNs(1000);
  const SequenceId id = Add(Prompt(5, 0), 3);
  RunToEnd();
  EXPECT_TRUE(outcomes_.at(id).status.ok());
}

TEST_F(EngineCoreTest, ARequestWhoseFirstChoiceHasEndedDoesNotWaitForItsTurnAnyMore) {
  Start({.num_blocks = 8, .max_running = 1, .step_tokens = 16, .chunk_tokens = 16, .queue_timeout_ns = 1000});
  SequenceSpec like;
  like.prompt = Prompt(5, 0);
  like.max_tokens = 1;
  const SequenceId first = AddChoices(like, 3);
  Step();
  ASSERT_TRUE(outcomes_.contains(first));
  ASSERT_FALSE(outcomes_.contains(first + 1));
  clock_.AdvanceNs(1000);
  RunToEnd();
  for (SequenceId id = first; id < first + 3; ++id) EXPECT_TRUE(outcomes_.at(id).status.ok());
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
    std::map<SequenceId, SequenceId> first_choice;
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
        sequence->spec.prompt_logprobs = random() % 5 == 0;
        const uint32_t num_choices = random() % 3 == 0 ? 2 + random() % 4 : 1;
        --last_id_;
        const SequenceId first = AddChoices(sequence->spec, static_cast<int32_t>(num_choices));
        for (uint32_t c = 0; c < num_choices; ++c) {
          expected[first + c] = FakeBackend::Generate(prompt, max_tokens, c);
          first_choice[first + c] = first;
        }
      } else if (choice == 3 && last_id_ > 0) {
        const SequenceId id = first_choice[1 + random() % last_id_];
        for (SequenceId of = id; of <= last_id_ && first_choice[of] == id; ++of) {
          if (!outcomes_.contains(of)) cancelled.insert(of);
        }
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

// Rows put through the model until nothing is left to do.
TEST_F(EngineCoreTest, ChoicesShareThePromptsRowsAndBlocks) {
  for (const int32_t prompt_tokens : {1, 2, 16, 17, 32, 33, 40}) {
    SCOPED_TRACE(prompt_tokens);
    tokens_.clear();
    outcomes_.clear();
    backend_ = FakeBackend();
    Start({.num_blocks = 64,
           .max_running = 8,
           .step_tokens = 64,
           .chunk_tokens = 16,
           .policy = {.prefix_cache = false}});
    SequenceSpec like;
    like.prompt = Prompt(prompt_tokens, 0);
    like.max_tokens = 5;
    const SequenceId first = AddChoices(like, 6);
    EXPECT_EQ(core_->Load().queued, 6);
    int32_t least_free = 64;
    while (Step()) least_free = std::min(least_free, static_cast<int32_t>(core_->Load().free_blocks));
    int32_t rows = 0;
    for (const FakeBackend::StepRecord& step : backend_.steps) rows += step.rows;
    EXPECT_EQ(rows, prompt_tokens + 5 + 6 * 4);  // five choices compute the last row of the prompt again
    const int32_t whole = (prompt_tokens - 1) / kBlockTokens;
    EXPECT_GE(least_free, 64 - whole - 6 * (BlocksForTokens(prompt_tokens + 4) - whole));
    for (uint32_t choice = 0; choice < 6; ++choice) {
      EXPECT_EQ(tokens_[first + choice], FakeBackend::Generate(Prompt(prompt_tokens, 0), 5, choice));
      EXPECT_EQ(outcomes_.at(first + choice).reason, FinishReason::kLength);
    }
    EXPECT_EQ(core_->Load().free_blocks, 64);
  }
}

TEST_F(EngineCoreTest, MoreChoicesThanSlotsRunOneAfterTheOther) {
  Start({.num_blocks = 16, .max_running = 2, .step_tokens = 16, .chunk_tokens = 16});
  SequenceSpec like;
  like.prompt = Prompt(20, 0);
  like.max_tokens = 3;
  const SequenceId first = AddChoices(like, 7);
  RunToEnd();
  for (uint32_t choice = 0; choice < 7; ++choice)
    EXPECT_EQ(tokens_[first + choice], FakeBackend::Generate(Prompt(20, 0), 3, choice));
}

TEST_F(EngineCoreTest, ChoicesThatWaitCountWhatTheyWillCompute) {
  Start({.num_blocks = 64,
         .max_running = 2,
         .step_tokens = 32,
         .chunk_tokens = 32,
         .policy = {.prefix_cache = false}});
  SequenceSpec like;
  like.prompt = Prompt(20, 0);
  like.max_tokens = 40;
  const SequenceId first = AddChoices(like, 7);
  EXPECT_EQ(core_->Load().queued_tokens, 20);  // those that are held back count nothing
  while (core_->Load().running < 2) Step();
  EXPECT_EQ(core_->Load().queued, 5);
  EXPECT_EQ(core_->Load().queued_tokens, 5);  // the last row of the prompt each
  // Nobody is left to lend it.
  core_->FinishStopped(first);
  core_->FinishStopped(first + 1);
  EXPECT_EQ(core_->Load().queued_tokens, 5 * 20);
  while (core_->Load().queued > 3) Step();
  EXPECT_EQ(core_->Load().queued_tokens, 3);
  RunToEnd();
  EXPECT_EQ(core_->Load().queued_tokens, 0);
}

TEST_F(EngineCoreTest, CancellationAndDeadlineEndAllChoicesHeldOnesToo) {
  for (const int steps : {0, 1, 2, 4}) {
    outcomes_.clear();
    backend_ = FakeBackend();
    Start({.num_blocks = 16, .max_running = 4, .step_tokens = 16, .chunk_tokens = 8});
    SequenceSpec like;
    like.prompt = Prompt(20, 0);
    like.max_tokens = 50;
    const SequenceId cancelled = AddChoices(like, 3);
    like.deadline_ns = clock_.NowNs() + 1000;
    const SequenceId late = AddChoices(like, 3);
    for (int i = 0; i < steps; ++i) Step();
    core_->Cancel(cancelled, absl::CancelledError(""));
    clock_.AdvanceNs(1000);
    RunToEnd();
    for (uint32_t choice = 0; choice < 3; ++choice) {
      EXPECT_EQ(outcomes_.at(cancelled + choice).status.code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(outcomes_.at(late + choice).status.code(), absl::StatusCode::kDeadlineExceeded);
    }
    EXPECT_EQ(core_->Load().free_blocks, 16);
    EXPECT_EQ(core_->Load().queued, 0);
  }
}

TEST_F(EngineCoreTest, EachTokenOfThePromptIsScoredOnceWhateverThePreemptions) {
  for (const int32_t num_blocks : {5, 64}) {
    outcomes_.clear();
    scores_.clear();
    backend_ = FakeBackend();
    Start({.num_blocks = num_blocks, .max_running = 4, .step_tokens = 16, .chunk_tokens = 7});
    std::vector<SequenceId> ids;
    for (int i = 0; i < 6; ++i) {
      SequenceSpec like;
      like.prompt = Prompt(30 + i, 0);  // a prefix that the cache has is computed all the same
      like.max_tokens = 20;
      like.prompt_logprobs = true;
      ids.push_back(AddChoices(like, 1));
    }
    RunToEnd();
    for (int i = 0; i < 6; ++i) {
      std::vector<float> expected;
      for (int32_t position = 0; position < 29 + i; ++position)
        expected.push_back(FakeBackend::ScoreAt(position));
      EXPECT_EQ(scores_[ids[static_cast<size_t>(i)]], expected);
    }
  }
}

TEST_F(EngineCoreTest, ReportsALostDevice) {
  Start({.num_blocks = 8, .max_running = 1, .step_tokens = 16, .chunk_tokens = 16});
  backend_.fault = absl::InternalError("illegal address");
  Add(Prompt(5, 0), 10);
  EXPECT_EQ(core_->RunOnce().status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ridge::worker
