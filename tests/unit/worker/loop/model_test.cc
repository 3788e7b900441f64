// Random operations on the engine and on its plain reference (plain_engine.h): after each, both
// have planned the same rows in the same blocks, preempted, found and evicted the same.
//
// RIDGE_TEST_OPERATIONS says how many operations (250,000); a failure names its seed.
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/loop/plain_engine.h"
#include "worker/backend/simulated/simulated_backend.h"
#include "worker/loop/engine_core.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

constexpr int32_t kSmallestPool = 8;  // holds any request
constexpr int kTemplates = 32;
constexpr int32_t kMostChoices = 3;

const ModelConfig& Model() {
  static const auto& model = *new ModelConfig(OpenModel("synthetic:qwen2.5-0.5b").value()->config());
  return model;
}

// A device without time that notes what it is given. A slot's sequence is known by its seed.
class RecordingBackend : public Backend {
 public:
  RecordingBackend() : device_(LoadCard("zero").value(), Model(), SimulatedOptions{}) {}

  const BackendInfo& Info() const override { return device_.Info(); }
  absl::Status Reserve(int32_t num_blocks, const BackendLimits& limits) override {
    return device_.Reserve(num_blocks, limits);
  }
  StepTicket Submit(const StepPlan& plan) override {
    PlainPlan record;
    for (const SlotAttach& attach : plan.attaches) sequences_[attach.slot] = attach.sampling.seed;
    for (const BlockAppend& append : plan.appends)
      record.blocks[sequences_.at(append.slot)].push_back(append.block);
    for (const BlockCopy& copy : plan.copies) record.copies.emplace_back(copy.from, copy.to);
    for (const Segment& segment : plan.segments) {
      record.rows.emplace_back(sequences_.at(segment.slot), segment.first_position, segment.num_rows,
                               segment.num_outputs);
    }
    plans.push_back(std::move(record));
    return device_.Submit(plan);
  }
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override { return device_.Collect(ticket); }

  std::vector<PlainPlan> plans;

 private:
  SimulatedBackend device_;
  std::map<SlotId, SequenceId> sequences_;
};

// The engine on such a device, driven by hand.
class DrivenEngine {
 public:
  explicit DrivenEngine(const EngineConfig& config)
      : core_(config, &backend_, &clock_, &metrics_, [this](const std::vector<OutputItem>& items) {
          for (const OutputItem& item : items) Take(item);
        }) {
    EXPECT_TRUE(backend_.Reserve(config.num_blocks, {config.max_running, config.step_tokens}).ok());
  }

  SequenceId Add(const SequenceSpec& spec, int32_t num_choices) {
    auto output = std::make_shared<OutputStream>();
    output->id = next_id_;
    std::vector<std::unique_ptr<Sequence>> choices;
    for (int32_t i = 0; i < num_choices; ++i) {
      auto sequence = std::make_unique<Sequence>();
      sequence->id = next_id_++;
      sequence->spec = spec;
      sequence->spec.sampling.seed = sequence->id;
      sequence->output = output;
      choices.push_back(std::move(sequence));
    }
    open_choices[output->id] = num_choices;
    core_.Add(std::move(choices));
    return output->id;
  }

  int64_t Count(const char* counter) { return static_cast<int64_t>(registry_.Counter(counter, "").Value()); }
  RecordingBackend& backend() { return backend_; }
  EngineCore& core() { return core_; }
  FakeClock& clock() { return clock_; }

  std::map<SequenceId, int32_t> open_choices;  // of the requests that did not end
  std::vector<TokenId> tokens;                 // of all of them

 private:
  void Take(const OutputItem& item) {
    if (item.has_token) tokens.push_back(item.token.id);
    if (!item.has_end) return;
    const auto open = open_choices.find(item.stream->id);
    if (--open->second == 0 || !item.outcome.status.ok()) open_choices.erase(open);
  }

  FakeClock clock_;
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  RecordingBackend backend_;
  EngineCore core_;
  SequenceId next_id_ = 1;
};

struct Template {
  SequenceSpec spec;
  std::vector<TokenId> output;
};

// Greedy, so that all choices and all seeds give the same; with a few beginnings between them.
std::vector<Template> MakeTemplates() {
  std::mt19937 random(5);
  std::vector<Template> templates(kTemplates);
  for (Template& t : templates) {
    const auto beginning = static_cast<TokenId>(1000 * (random() % 3));
    const int32_t prompt_tokens = 1 + static_cast<int32_t>(random() % 80);
    for (int32_t i = 0; i < prompt_tokens; ++i) t.spec.prompt.push_back(beginning + i);
    t.spec.sampling.temperature = 0.0f;
    t.spec.max_tokens = 1 + static_cast<int32_t>(random() % 48);
    t.spec.tenant = std::string(1, static_cast<char>('a' + random() % 3));
    t.spec.cache_salt = random() % 5 == 0 ? "other" : "";
    t.spec.priority = static_cast<int32_t>(random() % 2);
    DrivenEngine alone({.num_blocks = kSmallestPool, .max_running = 1, .step_tokens = 64});
    alone.Add(t.spec, 1);
    while (alone.core().RunOnce().value()) {
    }
    t.output = alone.tokens;
  }
  return templates;
}

EngineConfig RandomConfig(std::mt19937& random) {
  EnginePolicy policy;
  policy.launch = random() % 2 == 0 ? LaunchPolicy::kGraph : LaunchPolicy::kStream;
  policy.prefix_cache = random() % 4 != 0;
  const int32_t max_running = 1 + static_cast<int32_t>(random() % 16);
  return {.num_blocks = kSmallestPool + static_cast<int32_t>(random() % (random() % 8 == 0 ? 120 : 40)),
          .max_running = max_running,
          .step_tokens = max_running + static_cast<int32_t>(random() % 40),
          .chunk_tokens = 1 + static_cast<int32_t>(random() % 40),
          .policy = policy};
}

class Comparison {
 public:
  Comparison(uint32_t seed, const std::vector<Template>& templates)
      : random_(seed),
        templates_(templates),
        config_(RandomConfig(random_)),
        engine_(config_),
        plain_(config_) {}

  void Run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
      const uint32_t choice = random_() % 16;
      if (choice < 3 && engine_.open_choices.size() < 40) {
        Add();
      } else if (choice == 3) {
        End();
      } else if (choice == 4) {
        engine_.clock().AdvanceNs(static_cast<int64_t>(random_() % 4) * 1'000'000'000);
      } else {
        Turn();
      }
      Compare();
    }
    while (!engine_.open_choices.empty() && !testing::Test::HasFatalFailure()) {
      Turn();
      Compare();
    }
  }

  int64_t preemptions() const { return plain_.preemptions(); }
  int64_t evictions() const { return plain_.evictions(); }
  int64_t found_tokens() const { return plain_.found_tokens(); }

 private:
  void Add() {
    Template t = templates_[random_() % kTemplates];
    t.spec.arrival_ns = engine_.clock().NowNs();
    const int32_t n = random_() % 4 == 0 ? 1 + static_cast<int32_t>(random_() % kMostChoices) : 1;
    plain_.Add(engine_.Add(t.spec, n), n, t.spec, t.output);
  }

  // Before its time: the whole request by its client, or a choice whose text was found to be complete.
  void End() {
    if (engine_.open_choices.empty()) return;
    auto it = engine_.open_choices.begin();
    std::advance(it, random_() % engine_.open_choices.size());
    const SequenceId first = it->first;
    if (random_() % 2 == 0) {
      plain_.Cancel(first);
      engine_.core().Cancel(first, absl::CancelledError(""));
    } else {
      const SequenceId choice = first + random_() % kMostChoices;
      if (!plain_.IsOpen(choice, first)) return;
      plain_.Stop(choice);
      engine_.core().FinishStopped(choice);
      if (--it->second == 0) engine_.open_choices.erase(it);
    }
  }

  void Turn() {
    engine_.backend().plans.clear();
    ASSERT_TRUE(engine_.core().RunOnce().ok());
    const std::vector<PlainPlan> expected = plain_.Turn(engine_.clock().NowNs());
    ASSERT_EQ(engine_.backend().plans.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(engine_.backend().plans[i].rows, expected[i].rows);
      ASSERT_EQ(engine_.backend().plans[i].blocks, expected[i].blocks);
      ASSERT_EQ(engine_.backend().plans[i].copies, expected[i].copies);
    }
    ASSERT_EQ(engine_.Count("ridge_num_preemptions_total"), plain_.preemptions());
    ASSERT_EQ(engine_.Count("ridge_prefix_cache_evictions_total"), plain_.evictions());
    ASSERT_EQ(engine_.Count("ridge_prefix_cache_hits_total"), plain_.found_tokens());
  }

  void Compare() {
    const EngineLoad load = engine_.core().Load();
    ASSERT_EQ(load.running, plain_.running());
    ASSERT_EQ(load.queued, plain_.queued());
    ASSERT_EQ(load.free_blocks, plain_.available_blocks());
    engine_.core().CheckInvariant();
  }

  std::mt19937 random_;
  const std::vector<Template>& templates_;
  const EngineConfig config_;
  DrivenEngine engine_;
  PlainEngine plain_;
};

TEST(ModelTest, TheEngineDecidesAsItsPlainReferenceDoes) {
  const char* operations = std::getenv("RIDGE_TEST_OPERATIONS");
  const int total = operations != nullptr ? std::atoi(operations) : 250'000;
  constexpr int kOperationsPerEngine = 2000;
  const std::vector<Template> templates = MakeTemplates();
  int64_t preemptions = 0, found = 0, evictions = 0;
  for (uint32_t seed = 0; static_cast<int>(seed) * kOperationsPerEngine < total; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Comparison run(seed, templates);
    run.Run(kOperationsPerEngine);
    if (HasFatalFailure()) return;
    preemptions += run.preemptions();
    found += run.found_tokens();
    evictions += run.evictions();
  }
  std::printf("%d operations: %ld preemptions, %ld tokens found, %ld blocks evicted\n", total,
              static_cast<long>(preemptions), static_cast<long>(found), static_cast<long>(evictions));
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(found, 0);
  EXPECT_GT(evictions, 0);
}

}  // namespace
}  // namespace ridge::worker
