#include "worker/loop/engine.h"

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"
#include "worker/loop/engine_metrics.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Keeps what it hears; stops after `stop_after` tokens as a stop string would.
class RecordingSink : public TokenSink {
 public:
  explicit RecordingSink(size_t stop_after = SIZE_MAX) : stop_after_(stop_after) {}

  bool OnToken(const TokenEvent& token) override {
    tokens.push_back(token.id);
    if (tokens.size() == 1) first_token.Notify();
    return tokens.size() < stop_after_;
  }
  void OnEnd(const Outcome& end) override {
    outcome = end;
    ended.Notify();
  }

  std::vector<TokenId> tokens;
  Outcome outcome;
  absl::Notification first_token;
  absl::Notification ended;  // notified twice, it aborts: an end comes once

 private:
  const size_t stop_after_;
};

// Its first step does not end before it is told to go on.
class HeldUpBackend : public FakeBackend {
 public:
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override {
    if (!collecting.HasBeenNotified()) collecting.Notify();
    go_on.WaitForNotification();
    return FakeBackend::Collect(ticket);
  }
  absl::Notification collecting;
  absl::Notification go_on;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    const EngineConfig config{.num_blocks = 4096, .max_running = 8, .step_tokens = 64, .chunk_tokens = 64};
    EXPECT_TRUE(backend_.Reserve(config.num_blocks, {config.max_running, config.step_tokens}).ok());
    engine_ = std::make_unique<Engine>(config, &backend_, RealClock(), &metrics_);
  }

  SequenceSpec Spec(std::vector<TokenId> prompt, int32_t max_tokens) {
    SequenceSpec spec;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.arrival_ns = RealClock()->NowNs();
    return spec;
  }

  void ExpectAllBlocksFree() {
    for (int i = 0; i < 1000 && engine_->Load().free_blocks != 4096; ++i)
      absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(engine_->Load().free_blocks, 4096);
  }

  FakeBackend backend_;
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, DeliversTokensInOrderThenOneEnd) {
  auto sink = std::make_shared<RecordingSink>();
  engine_->Submit(Spec({1, 2, 3}, 50), sink);
  sink->ended.WaitForNotification();
  EXPECT_THAT(sink->tokens, ElementsAreArray(FakeBackend::Generate({1, 2, 3}, 50)));
  EXPECT_EQ(sink->outcome.reason, FinishReason::kLength);
}

TEST_F(EngineTest, EndsWhereTheSinkFoundAStopString) {
  auto sink = std::make_shared<RecordingSink>(5);
  engine_->Submit(Spec({1, 2, 3}, 60000), sink);
  sink->ended.WaitForNotification();
  EXPECT_EQ(sink->outcome.reason, FinishReason::kStop);
  EXPECT_EQ(sink->tokens.size(), 5u);
  ExpectAllBlocksFree();
}

TEST_F(EngineTest, AStopStringInTheLastTokenIsTheReason) {
  auto sink = std::make_shared<RecordingSink>(5);
  engine_->Submit(Spec({1, 2, 3}, 5), sink);
  sink->ended.WaitForNotification();
  EXPECT_EQ(sink->outcome.reason, FinishReason::kStop);
}

TEST_F(EngineTest, CancelsARunningSequence) {
  auto sink = std::make_shared<RecordingSink>();
  const SequenceId id = engine_->Submit(Spec({1, 2, 3}, 60000), sink);
  sink->first_token.WaitForNotification();
  engine_->Cancel(id, absl::CancelledError("client left"));
  sink->ended.WaitForNotification();
  EXPECT_EQ(sink->outcome.status.code(), absl::StatusCode::kCancelled);
  ExpectAllBlocksFree();
  EXPECT_THAT(registry_.Text(), HasSubstr("ridge_request_success_total{finished_reason=\"cancelled\"} 1"));
}

TEST_F(EngineTest, EndsWhatIsLeftWhenItIsDestroyed) {
  auto sink = std::make_shared<RecordingSink>();
  engine_->Submit(Spec({1, 2, 3}, 60000), sink);
  engine_.reset();
  ASSERT_TRUE(sink->ended.HasBeenNotified());
  EXPECT_EQ(sink->outcome.status.code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineTest, RefusesNewSequencesWhileDrainingAndFinishesTheOthers) {
  auto running = std::make_shared<RecordingSink>();
  engine_->Submit(Spec({1, 2, 3}, 500), running);
  engine_->Drain();
  auto late = std::make_shared<RecordingSink>();
  engine_->Submit(Spec({1}, 5), late);
  late->ended.WaitForNotification();
  EXPECT_EQ(late->outcome.status.code(), absl::StatusCode::kUnavailable);
  running->ended.WaitForNotification();
  EXPECT_TRUE(running->outcome.status.ok());
  EXPECT_EQ(running->tokens.size(), 500u);
}

TEST_F(EngineTest, ChecksWhetherASequenceCanEverFit) {
  EXPECT_TRUE(engine_->CheckFits(1, 4096 * 16).ok());
  const absl::Status status = engine_->CheckFits(2, 4096 * 16);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_tokens"));
}

TEST(CheckFitsTest, EveryMemoryTakesWhatFitsItAlone) {
  for (const std::string& preset : PresetNames()) {
    SCOPED_TRACE(preset);
    const EngineConfig config{.num_blocks = 1, .policy = PresetPolicy(preset), .max_context = kBlockTokens};
    EXPECT_TRUE(CheckFits(config, kBlockTokens, 1).ok());
    EXPECT_TRUE(CheckFits(config, 1, kBlockTokens).ok());
    const absl::Status status = CheckFits(config, 2, kBlockTokens);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("prompt and max_tokens need KV memory for 32 tokens"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("has it for 16"));
  }
}

TEST(CheckFitsTest, NothingFitsWhereThePoolIsLessThanASlot) {
  EngineConfig config{.num_blocks = 3, .policy = PresetPolicy("continuous"), .max_context = 49};
  const absl::Status status = CheckFits(config, 1, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "a slot needs KV memory for 64 tokens; the server has it for 48");
  config.num_blocks = 4;
  EXPECT_TRUE(CheckFits(config, 1, 1).ok());
  config.policy = PresetPolicy("paged");
  config.num_blocks = 1;
  EXPECT_TRUE(CheckFits(config, 1, 1).ok());
}

TEST(CheckFitsTest, ASlotIsTheLimitHoweverLargeThePool) {
  const EngineConfig config{.num_blocks = 100, .policy = PresetPolicy("continuous"), .max_context = 32};
  EXPECT_TRUE(CheckFits(config, 32, 1).ok());
  EXPECT_EQ(CheckFits(config, 33, 1).message(),
            "prompt and max_tokens need KV memory for 48 tokens; a slot has it for 32");
}

TEST_F(EngineTest, CountsWhatItDoes) {
  auto sink = std::make_shared<RecordingSink>();
  engine_->Submit(Spec({1, 2, 3}, 10), sink);
  sink->ended.WaitForNotification();
  const std::string text = registry_.Text();
  EXPECT_THAT(text, HasSubstr("ridge_prompt_tokens_total 3\n"));
  EXPECT_THAT(text, HasSubstr("ridge_generation_tokens_total 10\n"));
  EXPECT_THAT(text, HasSubstr("ridge_time_to_first_token_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("ridge_inter_token_latency_seconds_count 9\n"));
  EXPECT_THAT(text, HasSubstr("ridge_request_success_total{finished_reason=\"length\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ridge_step_duration_seconds_count{kind=\"decode\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("ridge_step_duration_seconds_count{kind=\"prefill\"} 1\n"));
}

TEST_F(EngineTest, AFullQueueTurnsRequestsAway) {
  HeldUpBackend backend;
  ASSERT_TRUE(backend.Reserve(64, {1, 64}).ok());
  Engine engine({.num_blocks = 64,
                 .max_running = 1,
                 .step_tokens = 64,
                 .max_queued_requests = 2,
                 .max_queued_tokens = 10},
                &backend, RealClock(), &metrics_);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  const auto submit = [&](int32_t prompt_tokens) {
    sinks.push_back(std::make_shared<RecordingSink>());
    engine.Submit(Spec(std::vector<TokenId>(prompt_tokens, 1), 1), sinks.back());
  };
  submit(3);
  backend.collecting.WaitForNotification();  // the first one runs
  submit(8);
  submit(3);  // 11 tokens
  sinks[2]->ended.WaitForNotification();
  EXPECT_EQ(sinks[2]->outcome.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sinks[2]->outcome.status.message()),
              HasSubstr("1 requests with 8 tokens wait; --max_queued_tokens is 10"));
  EXPECT_EQ(RetryAfter(sinks[2]->outcome.status), absl::Seconds(2));
  EXPECT_EQ(engine.Load().queue_room, 1);
  submit(2);
  EXPECT_EQ(engine.Load().queue_room, 0);
  submit(1);  // a third request
  sinks[4]->ended.WaitForNotification();
  EXPECT_EQ(sinks[4]->outcome.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sinks[4]->outcome.status.message(),
            "the queue is full: 2 requests with 10 tokens wait; --max_queued_requests is 2");
  backend.go_on.Notify();
  for (int i : {0, 1, 3}) {
    sinks[i]->ended.WaitForNotification();
    EXPECT_TRUE(sinks[i]->outcome.status.ok());
  }
}

TEST_F(EngineTest, EachChoiceOfARequestTakesAPlaceInTheQueue) {
  HeldUpBackend backend;
  ASSERT_TRUE(backend.Reserve(64, {1, 64}).ok());
  Engine engine({.num_blocks = 64, .max_running = 1, .step_tokens = 64, .max_queued_requests = 3}, &backend,
                RealClock(), &metrics_);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  const auto submit = [&](int32_t num_choices) {
    sinks.push_back(std::make_shared<RecordingSink>());
    engine.Submit(Spec({1}, 1), sinks.back(), num_choices);
  };
  submit(1);
  backend.collecting.WaitForNotification();  // it runs
  submit(1);
  submit(3);
  sinks[2]->ended.WaitForNotification();
  EXPECT_EQ(sinks[2]->outcome.status.code(), absl::StatusCode::kResourceExhausted);
  submit(2);
  EXPECT_EQ(engine.Load().queue_room, 0);
  backend.go_on.Notify();
  for (int i : {0, 1, 3}) {
    sinks[i]->ended.WaitForNotification();
    EXPECT_TRUE(sinks[i]->outcome.status.ok());
  }
}

TEST_F(EngineTest, WhoArrivesWhereSlotsAreFreeDoesNotWait) {
  for (const char* preset : {"ridge", "batched", "naive"}) {
    SCOPED_TRACE(preset);
    HeldUpBackend backend;
    ASSERT_TRUE(backend.Reserve(64, {4, 64}).ok());
    Engine engine({.num_blocks = 64,
                   .max_running = 4,
                   .step_tokens = 64,
                   .max_queued_requests = 2,
                   .max_queued_tokens = 10,
                   .policy = PresetPolicy(preset),
                   .max_context = 32},
                  &backend, RealClock(), &metrics_);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    const auto submit = [&](int32_t prompt_tokens) {
      sinks.push_back(std::make_shared<RecordingSink>());
      engine.Submit(Spec(std::vector<TokenId>(prompt_tokens, 1), 1), sinks.back());
    };
    submit(3);
    backend.collecting.WaitForNotification();  // one of four slots is taken, and the step goes on
    const size_t free = preset == std::string("ridge") ? 3 : 0;
    EXPECT_EQ(engine.Load().queue_room, 2 + free);
    for (size_t i = 0; i < free; ++i) submit(20);  // more than may wait
    EXPECT_EQ(engine.Load().queued, free);
    for (int i = 0; i < 10; ++i) submit(1);
    EXPECT_EQ(engine.Load().queue_room, 0);
    backend.go_on.Notify();
    size_t served = 0;
    for (const std::shared_ptr<RecordingSink>& sink : sinks) {
      sink->ended.WaitForNotification();
      served += sink->outcome.status.ok();
    }
    EXPECT_EQ(served, 1 + free + 2);
  }
}

TEST_F(EngineTest, ARequestAloneMayExceedWhatMayWait) {
  Engine engine({.num_blocks = 64,
                 .max_running = 1,
                 .step_tokens = 64,
                 .max_queued_requests = 2,
                 .max_queued_tokens = 10},
                &backend_, RealClock(), &metrics_);
  auto sink = std::make_shared<RecordingSink>();
  engine.Submit(Spec(std::vector<TokenId>(100, 1), 1), sink, 5);
  sink->ended.WaitForNotification();
  EXPECT_TRUE(sink->outcome.status.ok());
}

}  // namespace
}  // namespace ridge::worker
