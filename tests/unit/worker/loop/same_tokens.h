// What a request gets depends on the request alone: requests with sampling fields of every kind through the
// whole engine, on any backend, under settings and company that must not matter. For tests that compare bit
// for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/backend.h"
#include "worker/loop/engine_core.h"

namespace ridge::worker::same_tokens {

struct Request {
  SequenceSpec spec;
  int32_t num_choices = 1;
};

// A token, or a scored one of the prompt: ids and the bits of log-probabilities.
using Generated = std::vector<uint32_t>;

struct Answer {
  std::vector<std::vector<Generated>> choices;
  std::vector<Generated> prompt;

  bool operator==(const Answer&) const = default;
};

struct Setting {
  const char* name;
  int32_t max_running, step_tokens, chunk_tokens;
  EnginePolicy policy = {};
  uint32_t order = 0;          // seed of the order of arrival; 0: as they stand
  bool one_at_a_time = false;  // each request alone in the engine
  int32_t num_blocks = 600;
};

struct Counts {
  int64_t preemptions = 0;
  int64_t prefix_hits = 0;
};

inline constexpr int32_t kContext = 300;  // no request needs more

// Bans what depends on the token before.
class Neighbours final : public NextTokenBans {
 public:
  explicit Neighbours(int32_t vocab_size) : vocab_size_(vocab_size) {}
  int32_t Advance(int32_t /*state*/, TokenId token) const override { return token; }
  std::vector<TokenId> Banned(int32_t state) const override {
    std::vector<TokenId> banned;
    for (int32_t id = state % 2; id < vocab_size_; id += 2) banned.push_back(id);
    return banned;
  }

 private:
  const int32_t vocab_size_;
};

class RequestMaker {
 public:
  explicit RequestMaker(int32_t vocab_size) : vocab_size_(vocab_size) {
    for (std::vector<TokenId>& beginning : beginnings_) beginning = DrawIds(64);
  }

  std::vector<Request> Make(int count) {
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) requests.push_back(MakeOne(i));
    return requests;
  }

 private:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_()) % below; }
  TokenId DrawId() { return static_cast<TokenId>(Draw(static_cast<uint32_t>(vocab_size_))); }
  std::vector<TokenId> DrawIds(uint32_t count) {
    std::vector<TokenId> ids;
    while (ids.size() < count) ids.push_back(DrawId());
    return ids;
  }
  std::vector<TokenId> DrawSet(uint32_t count) {
    const std::vector<TokenId> ids = DrawIds(count);
    const std::set<TokenId> distinct(ids.begin(), ids.end());
    return {distinct.begin(), distinct.end()};
  }

  Request MakeOne(int i) {
    Request request;
    SequenceSpec& spec = request.spec;
    if (i % 2 == 0) spec.prompt = beginnings_[Draw(3)];
    const std::vector<TokenId> rest = DrawIds(i % 12 == 0 ? 100 + Draw(80) : 1 + Draw(40));
    spec.prompt.insert(spec.prompt.end(), rest.begin(), rest.end());
    spec.max_tokens = 1 + static_cast<int32_t>(Draw(24));
    AddSampling(i, &spec.sampling);
    AddControls(i, &spec);
    if (i % 10 == 3) request.num_choices = 2 + static_cast<int32_t>(Draw(3));
    if (i % 7 == 2) {
      spec.prompt_logprobs = true;
      spec.sampling.prompt_top_logprobs = static_cast<int32_t>(Draw(4));
    }
    return request;
  }

  void AddSampling(int i, SamplingParams* sampling) {
    sampling->seed = random_();
    sampling->logprobs = i % 5 != 1;
    sampling->top_logprobs =
        sampling->logprobs && i % 3 == 0 ? static_cast<int32_t>(Draw(kMaxTopLogprobs + 1)) : 0;
    if (i % 4 == 0) sampling->temperature = 0;
    if (i % 4 == 1) sampling->temperature = 0.8f;
    if (i % 4 == 2) {
      sampling->top_k = 20;
      sampling->top_p = 0.9f;
    }
    if (i % 4 == 3) sampling->min_p = 0.05f;
    if (i % 3 == 1) {
      sampling->repetition_penalty = 1.2f;
      sampling->presence_penalty = 0.5f;
      sampling->frequency_penalty = 0.25f;
    }
  }

  void AddControls(int i, SequenceSpec* spec) {
    TokenControls& controls = spec->controls;
    if (i % 6 == 5) {
      for (TokenId id : DrawSet(8)) controls.bias.push_back({id, static_cast<float>(Draw(8))});
    }
    if (i % 8 == 6) controls.allowed_ids = DrawSet(100);
    if (i % 8 == 7) controls.banned_ids = DrawSet(100);
    if (i % 9 == 4) {
      spec->bans = std::make_shared<Neighbours>(vocab_size_);
      controls.allowed_ids.clear();
    }
    if (i % 3 == 0) {
      spec->stop_ids = controls.late_ids = DrawSet(20);
      controls.min_tokens = static_cast<int32_t>(Draw(10));
    }
  }

  const int32_t vocab_size_;
  std::mt19937 random_{99};
  std::vector<TokenId> beginnings_[3];
};

class Run {
 public:
  Run(Backend* backend, const std::vector<Request>& requests, const Setting& setting)
      : requests_(requests),
        setting_(setting),
        answers_(requests.size()),
        core_({.num_blocks = setting.num_blocks,
               .max_running = setting.max_running,
               .step_tokens = setting.step_tokens,
               .chunk_tokens = setting.chunk_tokens,
               .policy = setting.policy,
               .max_context = kContext},
              backend, &clock_, &metrics_, [this](const std::vector<OutputItem>& items) { Take(items); }) {}

  std::vector<Answer> Finish() {
    std::vector<size_t> order(requests_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::mt19937 random(setting_.order);
    if (setting_.order != 0) std::shuffle(order.begin(), order.end(), random);
    for (size_t i : order) {
      Add(i);
      if (setting_.one_at_a_time) RunToEnd();
      // Arrivals in the middle of the others' work.
      for (uint32_t steps = setting_.order == 0 ? 0 : random() % 3; steps > 0; --steps)
        core_.RunOnce().value();
    }
    RunToEnd();
    core_.CheckInvariant();
    return std::move(answers_);
  }

  Counts counts() {
    return {static_cast<int64_t>(registry_.Counter("ridge_num_preemptions_total", "").Value()),
            static_cast<int64_t>(registry_.Counter("ridge_prefix_cache_hits_total", "").Value())};
  }

 private:
  void Add(size_t index) {
    const Request& request = requests_[index];
    const auto output = std::make_shared<OutputStream>();
    output->id = index;
    const auto spec = std::make_shared<SequenceSpec>(request.spec);
    std::vector<std::unique_ptr<Sequence>> choices;
    for (int32_t c = 0; c < request.num_choices; ++c) {
      auto choice = std::make_unique<Sequence>(spec, c);
      choice->id = ++last_id_;
      choice->output = output;
      choices.push_back(std::move(choice));
    }
    answers_[index].choices.resize(choices.size());
    core_.Add(std::move(choices));
  }

  void RunToEnd() {
    while (core_.RunOnce().value()) {
    }
  }

  static void AddLogprobs(float logprob, const std::vector<TokenLogprob>& top, Generated* generated) {
    generated->push_back(std::bit_cast<uint32_t>(logprob));
    for (const TokenLogprob& entry : top) {
      generated->push_back(static_cast<uint32_t>(entry.id));
      generated->push_back(std::bit_cast<uint32_t>(entry.logprob));
    }
  }

  void Take(const std::vector<OutputItem>& items) {
    for (const OutputItem& item : items) {
      Answer& answer = answers_[item.stream->id];
      for (const PromptLogprob& scored : item.prompt_logprobs)
        AddLogprobs(scored.logprob, scored.top, &answer.prompt.emplace_back());
      if (!item.has_token) continue;
      const auto first = static_cast<int32_t>(requests_[item.stream->id].spec.sampling.choice);
      Generated& generated = answer.choices[static_cast<size_t>(item.token.choice - first)].emplace_back();
      generated.push_back(static_cast<uint32_t>(item.token.id));
      AddLogprobs(item.token.logprob, item.token.top, &generated);
    }
  }

  const std::vector<Request>& requests_;
  const Setting setting_;
  std::vector<Answer> answers_;
  FakeClock clock_;
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  SequenceId last_id_ = 0;
  EngineCore core_;
};

// What everything is compared with: each choice as a request of its own, one at a time, without a prefix
// cache.
inline std::vector<Answer> Alone(Backend* backend, const std::vector<Request>& requests) {
  std::vector<Request> single;
  for (const Request& request : requests) {
    for (int32_t c = 0; c < request.num_choices; ++c) {
      single.push_back({request.spec});
      single.back().spec.sampling.choice = static_cast<uint32_t>(c);
      single.back().spec.prompt_logprobs = request.spec.prompt_logprobs && c == 0;
    }
  }
  const EnginePolicy policy{.launch = LaunchPolicy::kStream, .prefix_cache = false};
  const std::vector<Answer> choices = Run(backend, single, {"alone", 1, 512, 512, policy, 0, true}).Finish();
  std::vector<Answer> answers(requests.size());
  size_t next = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    answers[i].prompt = choices[next].prompt;
    for (int32_t c = 0; c < requests[i].num_choices; ++c)
      answers[i].choices.push_back(choices[next++].choices[0]);
  }
  return answers;
}

}  // namespace ridge::worker::same_tokens
