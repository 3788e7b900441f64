#include "bench/ladder/engine_host.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "worker/backend/simulated/card.h"
#include "worker/backend/simulated/simulated_backend.h"
#include "worker/memory/block_pool.h"
#include "worker/model/open_model.h"
#include "worker/service/backend_factory.h"

namespace ridge::bench {
namespace {

void SleepUntil(int64_t time_ns) {
  const int64_t left_ns = time_ns - RealClock()->NowNs();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

worker::WorkerConfig ToWorkerConfig(const HostConfig& config) {
  worker::WorkerConfig worker;
  worker.model = config.model;
  worker.device = config.device;
  worker.threads = config.threads;
  return worker;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpenedModel>> OpenedModel::Open(const HostConfig& config) {
  const worker::WorkerConfig worker = ToWorkerConfig(config);
  if (absl::Status status = worker::CheckModelPath(worker); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<worker::WeightSource>> source = worker::OpenModel(config.model);
  if (!source.ok()) return InvalidField("--model", source.status().message());
  absl::StatusOr<worker::ServedModel> served = worker::LoadServedModel(worker, **source);
  if (!served.ok()) return served.status();
  auto model = std::make_unique<OpenedModel>();
  model->source_ = *std::move(source);
  model->served_ = *std::move(served);
  return model;
}

Prompts OpenedModel::MakePrompts(std::string source_text) const {
  EncodeText encode;
  if (served_.tokenizer != nullptr) encode = EncodeWith(served_.tokenizer.get());
  return Prompts(std::move(encode), std::move(source_text), source_->config().vocab_size);
}

absl::StatusOr<std::unique_ptr<EngineHost>> EngineHost::Open(const HostConfig& config,
                                                             const worker::PolicyNames& names,
                                                             const OpenedModel& model) {
  const absl::StatusOr<worker::EnginePolicy> policy = worker::PolicyOf(names);
  if (!policy.ok()) return policy.status();
  if (config.max_context > model.served().context_length) {
    return InvalidField("--max_context",
                        absl::StrCat(config.max_context, " tokens are more than the model's context of ",
                                     model.served().context_length));
  }
  auto host = std::make_unique<EngineHost>();
  host->wait_until_ = SleepUntil;
  const int64_t begin_ns = RealClock()->NowNs();
  absl::Status status = host->CreateBackend(config, names, model);
  if (status.ok()) status = host->Reserve(config, *policy, model);
  if (!status.ok()) return status;
  host->load_s_ = static_cast<double>(RealClock()->NowNs() - begin_ns) * 1e-9;
  return host;
}

absl::Status EngineHost::CreateBackend(const HostConfig& config, const worker::PolicyNames& names,
                                       const OpenedModel& model) {
  if (absl::Status status = worker::CheckDeviceName(config.device); !status.ok()) return status;
  const worker::EnginePolicy policy = worker::PolicyOf(names).value();
  if (config.virtual_clock && absl::StartsWith(config.device, worker::kSimulatedPrefix)) {
    const absl::StatusOr<worker::SimulatedCard> card =
        worker::LoadCard(absl::StripPrefix(config.device, worker::kSimulatedPrefix));
    if (!card.ok()) return InvalidField("--device", card.status().message());
    clock_ = &virtual_clock_;
    wait_until_ = [this](int64_t time_ns) {
      virtual_clock_.AdvanceNs(std::max<int64_t>(0, time_ns - virtual_clock_.NowNs()));
    };
    worker::SimulatedOptions options;
    options.split_attention = policy.attention == worker::AttentionPolicy::kSplit;
    options.replay = policy.launch == worker::LaunchPolicy::kGraph;
    options.clock = clock_;
    options.wait_until = wait_until_;
    backend_ = std::make_unique<worker::SimulatedBackend>(*card, model.source().config(), options);
    return absl::OkStatus();
  }
  worker::WorkerConfig worker_config = ToWorkerConfig(config);
  worker_config.policy = names;
  absl::StatusOr<std::unique_ptr<worker::Backend>> backend =
      worker::CreateBackend(worker_config, model.source(), &registry_);
  if (!backend.ok()) return backend.status();
  backend_ = *std::move(backend);
  return absl::OkStatus();
}

absl::Status EngineHost::Reserve(const HostConfig& config, const worker::EnginePolicy& policy,
                                 const OpenedModel& model) {
  const worker::BackendInfo& info = backend_->Info();
  const int32_t context = config.max_context > 0 ? config.max_context : model.served().context_length;
  const bool whole_prompts = policy.prefill != worker::PrefillPolicy::kChunked;
  step_tokens_ = std::max({config.step_tokens, config.chunk_tokens, config.max_batch});
  if (config.step_tokens == 0 && whole_prompts) step_tokens_ = std::max(step_tokens_, context);
  const worker::BackendLimits limits{config.max_batch, step_tokens_};
  int64_t blocks = config.kv_cache_bytes.value_or(0) / info.kv_block_bytes;
  if (!config.kv_cache_bytes.has_value()) {
    const absl::StatusOr<int32_t> left = backend_->DefaultBlocks(limits);
    if (!left.ok()) return InvalidField("--kv_cache_bytes", left.status().message());
    blocks = *left;
  }
  const int64_t most_blocks = int64_t{config.max_batch} * worker::BlocksForTokens(context);
  num_blocks_ = static_cast<int32_t>(std::min(blocks, most_blocks));
  if (num_blocks_ < 1) {
    return InvalidField("--kv_cache_bytes",
                        absl::StrCat("no room for one block of ", info.kv_block_bytes, " bytes"));
  }
  const int64_t slot_blocks = worker::BlocksForTokens(context);
  if (policy.memory == worker::MemoryPolicy::kSlots && num_blocks_ < slot_blocks) {
    return InvalidField("--kv_cache_bytes",
                        absl::StrCat("a slot of --max_context, ", context, " tokens, takes ",
                                     slot_blocks * info.kv_block_bytes, " bytes; there are ",
                                     num_blocks_ * info.kv_block_bytes));
  }
  if (absl::Status status = backend_->Reserve(num_blocks_, limits); !status.ok()) {
    return InvalidField("--kv_cache_bytes", status.message());
  }
  const worker::EngineConfig engine{.num_blocks = num_blocks_,
                                    .max_running = config.max_batch,
                                    .step_tokens = step_tokens_,
                                    .chunk_tokens = config.chunk_tokens,
                                    .policy = policy,
                                    .max_context = context};
  target_ = std::make_unique<EngineTarget>(engine, backend_.get(), clock_, wait_until_);
  return absl::OkStatus();
}

int64_t EngineHost::TakePeakBytes() {
  return info().weight_bytes + target_->TakePeakBlocks() * info().kv_block_bytes;
}

std::string EngineHost::TakeWork() {
  const worker::EngineTotals& now = target_->totals();
  const std::string work =
      absl::StrCat("steps ", now.steps - told_.steps, ", rows ", now.rows - told_.rows, ", padded_rows ",
                   now.padded_rows - told_.padded_rows, ", kv_positions ",
                   now.kv_positions - told_.kv_positions, ", launches ", now.launches - told_.launches);
  told_ = now;
  return work;
}

}  // namespace ridge::bench
