// A million random operations on engines with tiny pools: arrivals of one or more choices, cancellations,
// stops, preemptions and evictions in between. After each the invariants are counted anew; every token is the
// one that the plain reference, a request alone, has at that place; nothing is lost, nothing hangs.
//
// RIDGE_TEST_OPERATIONS says how many operations (1,000,000); a failure names its seed.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/simulated/simulated_backend.h"
#include "worker/loop/engine_core.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

constexpr int32_t kSmallestPool = 8;  // holds any request
constexpr int kTemplates = 48;
constexpr int32_t kMostChoices = 3;

// An engine on a device without time, driven by hand, and what came of each request.
class Harness {
 public:
  explicit Harness(const EngineConfig& config)
      : config_(config), model_(OpenModel("synthetic:qwen2.5-0.5b").value()->config()) {
    backend_ = std::make_unique<SimulatedBackend>(LoadCard("zero").value(), model_, SimulatedOptions{});
    EXPECT_TRUE(backend_->Reserve(config.num_blocks, {config.max_running, config.step_tokens}).ok());
    core_ = std::make_unique<EngineCore>(config, backend_.get(), &clock_, &metrics_,
                                         [this](const std::vector<OutputItem>& items) { Take(items); });
  }

  struct Request {
    int index;  // of its template
    int32_t num_choices;
    std::vector<std::vector<TokenId>> tokens;  // of each choice
    int32_t open_choices;
    bool cut = false;  // cancelled or stopped
    bool ended = false;
  };

  SequenceId Add(const SequenceSpec& spec, int index, int32_t num_choices) {
    auto output = std::make_shared<OutputStream>();
    output->id = next_id_;
    output->choices.resize(static_cast<size_t>(num_choices));
    output->open_choices = num_choices;
    const auto shared = std::make_shared<SequenceSpec>(spec);
    std::vector<std::unique_ptr<Sequence>> choices;
    for (int32_t i = 0; i < num_choices; ++i) {
      auto sequence = std::make_unique<Sequence>(shared, i);
      sequence->id = next_id_++;
      sequence->output = output;
      choices.push_back(std::move(sequence));
    }
    requests_[output->id] = {index, num_choices, std::vector<std::vector<TokenId>>(num_choices), num_choices};
    open_.push_back(output->id);
    core_->Add(std::move(choices));
    return output->id;
  }

  bool Step() { return core_->RunOnce().value(); }
  EngineCore& core() { return *core_; }
  FakeClock& clock() { return clock_; }
  std::map<SequenceId, Request>& requests() { return requests_; }
  // Requests that may not have ended yet.
  std::vector<SequenceId>& open() { return open_; }
  int64_t Count(const char* counter) { return static_cast<int64_t>(registry_.Counter(counter, "").Value()); }

 private:
  void Take(const std::vector<OutputItem>& items) {
    for (const OutputItem& item : items) {
      Request& request = requests_.at(item.stream->id);
      ASSERT_FALSE(request.ended) << "something came after the end of request " << item.stream->id;
      if (item.has_token) request.tokens[item.token.choice].push_back(item.token.id);
      if (!item.has_end) continue;
      request.open_choices = item.outcome.status.ok() ? request.open_choices - 1 : 0;
      request.ended = request.open_choices == 0;
    }
  }

  const EngineConfig config_;
  const ModelConfig model_;
  FakeClock clock_;
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  std::unique_ptr<SimulatedBackend> backend_;
  std::unique_ptr<EngineCore> core_;
  SequenceId next_id_ = 1;
  std::map<SequenceId, Request> requests_;
  std::vector<SequenceId> open_;
};

// Requests with a few beginnings between them, and what each choice of them generates when it is alone.
class Reference {
 public:
  Reference() {
    std::mt19937 random(5);
    for (int i = 0; i < kTemplates; ++i) {
      SequenceSpec spec;
      const auto beginning = static_cast<TokenId>(1000 * (random() % 3));
      const int32_t prompt_tokens = 1 + static_cast<int32_t>(random() % 80);
      for (int32_t j = 0; j < prompt_tokens; ++j) spec.prompt.push_back(beginning + j);
      spec.max_tokens = 1 + static_cast<int32_t>(random() % 48);
      spec.sampling.seed = random();
      spec.tenant = std::string(1, static_cast<char>('a' + random() % 3));
      spec.cache_salt = random() % 5 == 0 ? "other" : "";
      spec.priority = static_cast<int32_t>(random() % 2);
      specs_.push_back(spec);
      Harness alone({.num_blocks = 3 * kSmallestPool, .max_running = kMostChoices, .step_tokens = 64});
      const SequenceId id = alone.Add(spec, i, kMostChoices);
      while (alone.Step()) {
      }
      expected_.push_back(alone.requests().at(id).tokens);
    }
  }

  const SequenceSpec& spec(int i) const { return specs_[static_cast<size_t>(i)]; }
  const std::vector<TokenId>& expected(int i, int32_t choice) const {
    return expected_[static_cast<size_t>(i)][static_cast<size_t>(choice)];
  }

 private:
  std::vector<SequenceSpec> specs_;
  std::vector<std::vector<std::vector<TokenId>>> expected_;
};

// Any choices that go together; every second engine is the default one.
EnginePolicy RandomPolicy(std::mt19937& random) {
  const auto one_of = [&](const std::vector<const char*>& names) {
    return std::string(names[random() % names.size()]);
  };
  for (;;) {
    PolicyNames names;
    if (random() % 2 == 0) {
      names.memory = one_of({"scratch", "contiguous", "padded", "slots", "reserved", "on_demand"});
      names.admission = one_of({"one", "batch", "continuous"});
      names.prefill = one_of({"whole", "padded", "chunked"});
      names.step = one_of({"separate", "fused"});
    }
    names.launch = one_of({"stream", "graph"});
    names.prefix_cache = one_of({"off", "on", "on"});
    if (const absl::StatusOr<EnginePolicy> policy = PolicyOf(names); policy.ok()) return *policy;
  }
}

EngineConfig RandomConfig(std::mt19937& random) {
  const EnginePolicy policy = RandomPolicy(random);
  const int32_t max_running = 1 + static_cast<int32_t>(random() % 12);
  return {.num_blocks = kSmallestPool + static_cast<int32_t>(random() % 40),
          .max_running = max_running,
          .step_tokens = max_running + static_cast<int32_t>(random() % 40),
          .chunk_tokens = 1 + static_cast<int32_t>(random() % 40),
          .policy = policy,
          .max_context = kSmallestPool * kBlockTokens};
}

class RandomOperations {
 public:
  RandomOperations(uint32_t seed, const Reference& reference)
      : random_(seed), reference_(reference), config_(RandomConfig(random_)), engine_(config_) {}

  void Run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
      const uint32_t choice = random_() % 16;
      if (choice < 3 && engine_.open().size() < 40) {
        const int index = static_cast<int>(random_() % kTemplates);
        const int32_t n = random_() % 4 == 0 ? 1 + static_cast<int32_t>(random_() % kMostChoices) : 1;
        engine_.Add(reference_.spec(index), index, n);
      } else if (choice == 3) {
        Cut(true);
      } else if (choice == 4) {
        Cut(false);
      } else if (choice == 5) {
        engine_.clock().AdvanceNs(1'000'000'000);  // priorities age
      } else {
        engine_.Step();
      }
      engine_.core().CheckInvariant();
    }
    int rest = 0;
    while (engine_.Step()) {
      engine_.core().CheckInvariant();
      ASSERT_LT(++rest, 1'000'000) << "it does not come to rest";
    }
    engine_.Step();
    Compare();
    ASSERT_EQ(engine_.core().Load().free_blocks, config_.num_blocks);
    ASSERT_EQ(engine_.core().Load().running + engine_.core().Load().queued, 0);
  }

  int64_t Count(const char* counter) { return engine_.Count(counter); }

 private:
  // Ends a random request before its time: by its client, or where its text was found to be complete.
  void Cut(bool cancels) {
    std::vector<SequenceId>& open = engine_.open();
    if (open.empty()) return;
    const size_t i = random_() % open.size();
    const SequenceId id = open[i];
    open[i] = open.back();
    open.pop_back();
    Harness::Request& request = engine_.requests().at(id);
    if (request.ended) return;
    request.cut = true;
    if (cancels) {
      engine_.core().Cancel(id, absl::CancelledError(""));
      ASSERT_TRUE(request.ended);
    } else {
      for (int32_t choice = 0; choice < request.num_choices; ++choice)
        engine_.core().FinishStopped(id + static_cast<SequenceId>(choice));
      request.ended = true;
    }
  }

  void Compare() {
    for (const auto& [id, request] : engine_.requests()) {
      ASSERT_TRUE(request.ended) << "request " << id << " was lost";
      for (int32_t choice = 0; choice < request.num_choices; ++choice) {
        const std::vector<TokenId>& expected = reference_.expected(request.index, choice);
        const std::vector<TokenId>& tokens = request.tokens[static_cast<size_t>(choice)];
        ASSERT_LE(tokens.size(), expected.size());
        ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin())) << "request " << id;
        ASSERT_TRUE(request.cut || tokens.size() == expected.size()) << "request " << id;
      }
    }
  }

  std::mt19937 random_;
  const Reference& reference_;
  const EngineConfig config_;
  Harness engine_;
};

TEST(RandomOperationsTest, LoseNothingAndChangeNoTokens) {
  const char* operations = std::getenv("RIDGE_TEST_OPERATIONS");
  const int total = operations != nullptr ? std::atoi(operations) : 1'000'000;
  constexpr int kOperationsPerEngine = 2000;
  const Reference reference;
  int64_t preemptions = 0, hits = 0, evictions = 0;
  for (uint32_t seed = 0; static_cast<int>(seed) * kOperationsPerEngine < total; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomOperations run(seed, reference);
    run.Run(kOperationsPerEngine);
    if (HasFatalFailure()) return;
    preemptions += run.Count("ridge_num_preemptions_total");
    hits += run.Count("ridge_prefix_cache_hits_total");
    evictions += run.Count("ridge_prefix_cache_evictions_total");
  }
  std::printf("%d operations: %ld preemptions, %ld tokens found, %ld blocks evicted\n", total,
              static_cast<long>(preemptions), static_cast<long>(hits), static_cast<long>(evictions));
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(evictions, 0);
}

}  // namespace
}  // namespace ridge::worker
