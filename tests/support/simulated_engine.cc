#include "tests/support/simulated_engine.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

SimulatedOptions OnVirtualClock(FakeClock* clock) {
  SimulatedOptions options;
  options.clock = clock;
  options.wait_until = [clock](int64_t time_ns) {
    clock->AdvanceNs(std::max<int64_t>(0, time_ns - clock->NowNs()));
  };
  return options;
}

const ModelConfig& Model() {
  static const auto& model = *new ModelConfig(OpenModel("synthetic:qwen2.5-1.5b").value()->config());
  return model;
}

}  // namespace

SimulatedEngine::RecordingBackend::RecordingBackend(const std::string& card, const SimulatedOptions& options)
    : SimulatedBackend(LoadCard(card).value(), Model(), options),
      cost_(LoadCard(card).value(), Model(), options.split_attention, options.replay) {}

StepTicket SimulatedEngine::RecordingBackend::Submit(const StepPlan& plan) {
  device_ns += cost_.Of(plan).device_ns;
  StepResult counts;
  CountRows(plan, &counts);
  rows.push_back(counts.rows);
  return SimulatedBackend::Submit(plan);
}

SimulatedEngine::SimulatedEngine(const std::string& card, const EngineConfig& config)
    : backend_(card, OnVirtualClock(&clock_)),
      core_(config, &backend_, &clock_, &metrics_,
            [this](const std::vector<OutputItem>& items) { Take(items); }) {
  RIDGE_CHECK(backend_.Reserve(config.num_blocks, {config.max_running, config.step_tokens}).ok());
}

SequenceId SimulatedEngine::Add(const Request& request) {
  auto sequence = std::make_unique<Sequence>();
  const SequenceId id = sequence->id = ++last_id_;
  sequence->output = std::make_shared<OutputStream>();
  sequence->output->id = id;
  SequenceSpec& spec = sequence->spec;
  const int64_t first = request.first_token >= 0 ? request.first_token : static_cast<int64_t>(id) * 37;
  for (int32_t i = 0; i < request.prompt_tokens; ++i)
    spec.prompt.push_back(static_cast<TokenId>((first + i) % 150'000));
  spec.max_tokens = request.max_tokens;
  spec.tenant = request.tenant;
  spec.arrival_ns = arrival_ns_[id] = request.arrival_ns >= 0 ? request.arrival_ns : clock_.NowNs();
  core_.Add(std::move(sequence));
  return id;
}

void SimulatedEngine::Take(const std::vector<OutputItem>& items) {
  for (const OutputItem& item : items) {
    if (item.has_token) token_ns_[item.stream->id].push_back(item.token.time_ns);
    tokens_ += item.has_token;
    ended_ += item.has_end;
  }
}

}  // namespace ridge::worker
