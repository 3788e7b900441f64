#include "worker/service/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/start_phase.h"
#include "common/status.h"
#include "worker/model/open_model.h"
#include "worker/service/backend_factory.h"

namespace ridge::worker {
namespace {

constexpr char kInferenceName[] = "ridge.v1.Inference";
constexpr char kWorkerName[] = "ridge.v1.Worker";
constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
// What is taken for KV memory at most where there is a prefix cache, in what all sequences hold at their
// limits.
constexpr int64_t kMostCacheTimes = 4;

// 0 is no limit.
int64_t LimitNs(absl::Duration limit) {
  return limit == absl::ZeroDuration() ? INT64_MAX : absl::ToInt64Nanoseconds(limit);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerConfig& config) {
  auto worker = std::unique_ptr<Worker>(new Worker(config));
  // Before the model: a port that is taken is found at once.
  if (absl::Status status = worker->OpenPorts(); !status.ok()) return status;
  if (absl::Status status = worker->Load(); !status.ok()) return status;
  worker->StartEngine();
  if (absl::Status status = worker->Serve(); !status.ok()) return status;
  return worker;
}

Worker::~Worker() {
  {
    absl::MutexLock lock(&mutex_);
    serving_ = false;  // a call to drain may be under way
  }
  // Who calls goes before who is called.
  watchdog_.reset();
  if (worker_service_ != nullptr) worker_service_->Close();
  ports_.reset();
}

absl::Status Worker::Load() {
  if (absl::Status status = CheckModelPath(config_); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<WeightSource>> source =
      TimedPhase("model opened", [this] { return OpenModel(config_.model); });
  if (!source.ok()) return InvalidField("--model", source.status().message());
  absl::StatusOr<ServedModel> model =
      TimedPhase("tokenizer loaded", [&] { return LoadServedModel(config_, **source); });
  if (!model.ok()) return model.status();
  model_ = *std::move(model);
  absl::Status status = TimedPhase("weights loaded", [&] { return LoadBackend(**source); });
  if (status.ok()) status = TimedPhase("memory reserved", [this] { return ReserveMemory(); });
  if (status.ok()) LimitContext();
  return status;
}

absl::Status Worker::LoadBackend(const WeightSource& source) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(config_, source, &registry_);
  if (!backend.ok()) return backend.status();
  backend_ = *std::move(backend);
  model_.numerics_id = backend_->Info().numerics_id;
  model_.device = backend_->Info().device;
  model_.max_batch = config_.max_batch;
  model_.extended_sampling = backend_->Info().extended_sampling;
  return absl::OkStatus();
}

absl::Status Worker::ReserveMemory() {
  const int64_t block_bytes = backend_->Info().kv_block_bytes;
  const BackendLimits limits{config_.max_batch, config_.step_tokens};
  int64_t asked_blocks = 0;
  if (!config_.kv_cache_bytes.has_value()) {
    const absl::StatusOr<int32_t> blocks = backend_->DefaultBlocks(limits);
    if (!blocks.ok()) return InvalidField("--kv_cache_bytes", blocks.status().message());
    asked_blocks = *blocks;
  } else if (asked_blocks = *config_.kv_cache_bytes / block_bytes; asked_blocks == 0) {
    return InvalidField("--kv_cache_bytes",
                        absl::StrCat(*config_.kv_cache_bytes, " is less than one block of ", kBlockTokens,
                                     " tokens, ", block_bytes, " bytes"));
  }
  // What all sequences hold at their limits is all that is ever used, but for the beginnings of prompts that
  // the prefix cache remembers.
  const int64_t times = PolicyOf(config_.policy).value().prefix_cache ? kMostCacheTimes : 1;
  const int64_t most_blocks = times * config_.max_batch * ((model_.context_length - 1) / kBlockTokens + 1);
  num_blocks_ = static_cast<int32_t>(std::min({asked_blocks, most_blocks, int64_t{INT32_MAX}}));
  if (num_blocks_ < asked_blocks) {
    LogInfo("--kv_cache_bytes: {} of {} bytes are taken: {} x --max_batch x context",
            num_blocks_ * block_bytes, asked_blocks * block_bytes, times);
  }
  model_.kv_capacity_tokens = int64_t{num_blocks_} * kBlockTokens;
  absl::Status status = backend_->Reserve(num_blocks_, limits);
  if (!status.ok()) return InvalidField("--kv_cache_bytes", status.message());
  return status;
}

void Worker::LimitContext() {
  // What can never run is refused with its field's name, as whatever exceeds the context is.
  if (model_.kv_capacity_tokens >= model_.context_length) return;
  LogWarning("--kv_cache_bytes: memory for {} tokens limits the context of {}", model_.kv_capacity_tokens,
             model_.context_length);
  model_.context_length = static_cast<int32_t>(model_.kv_capacity_tokens);
}

void Worker::StartEngine() {
  LogInfo("model {}: {}, {:.1f} M parameters, context {}, numerics {}", model_.name,
          model_.config.architecture, model_.config.num_parameters() * 1e-6, model_.context_length,
          model_.numerics_id);
  LogInfo("device {}: weights {} MiB, KV memory for {} tokens, {} MiB", model_.device,
          backend_->Info().weight_bytes >> 20, model_.kv_capacity_tokens,
          num_blocks_ * backend_->Info().kv_block_bytes >> 20);
  engine_ = std::make_unique<Engine>(EngineConfig{.num_blocks = num_blocks_,
                                                  .max_running = config_.max_batch,
                                                  .step_tokens = config_.step_tokens,
                                                  .chunk_tokens = config_.chunk_tokens,
                                                  .max_queued_requests = config_.max_queued_requests,
                                                  .max_queued_tokens = config_.max_queued_tokens,
                                                  .queue_timeout_ns = LimitNs(config_.queue_timeout),
                                                  .policy = PolicyOf(config_.policy).value(),
                                                  .max_context = model_.context_length},
                                     backend_.get(), RealClock(), &engine_metrics_);
  watchdog_ = std::make_unique<Watchdog>([engine = engine_.get()] { return engine->StalledNs(); },
                                         config_.stall_timeout, kWatchInterval,
                                         [this](bool stalled) { OnStall(stalled); });
  tasks_ = std::make_unique<TaskPool>();
  const CallEnvironment environment{&model_, engine_.get(), tasks_.get(), RealClock(), &open_calls_};
  inference_ = std::make_unique<InferenceService>(environment);
  worker_service_ = std::make_unique<WorkerService>(
      environment, [this] { return ReportLoad(); }, [this] { StopAdmission(); });
}

absl::Status Worker::OpenPorts() {
  ServerPortsOptions options;
  options.grpc.listen = config_.listen;
  options.grpc.max_message_bytes = config_.max_message_bytes;
  options.metrics_port = config_.metrics_port;
  options.http.metrics = &registry_;
  options.http.ready = [this] { return Ready(); };
  options.http.status = [this] { return StatusText(); };
  absl::StatusOr<std::unique_ptr<ServerPorts>> ports = ServerPorts::Open(std::move(options));
  if (!ports.ok()) return ports.status();
  ports_ = *std::move(ports);
  return absl::OkStatus();
}

absl::Status Worker::Serve() {
  absl::Status status = ports_->Serve({inference_.get(), worker_service_.get()});
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  serving_ = true;
  PublishHealth();
  return status;
}

void Worker::StopAdmission() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  engine_->Drain();
  PublishHealth();
}

void Worker::OnStall(bool stalled) {
  if (stalled) {
    LogError("no step has ended for {}, with work to do: not ready",
             absl::FormatDuration(config_.stall_timeout));
  } else {
    LogWarning("steps make progress again");
  }
  absl::MutexLock lock(&mutex_);
  stalled_ = stalled;
  PublishHealth();
}

void Worker::PublishHealth() {
  // A router may ask for a drain before Serve has returned.
  if (!serving_) return;
  ports_->SetServing(kInferenceName, !draining_ && !stalled_);
  ports_->SetServing(kWorkerName, !draining_ && !stalled_);
}

int Worker::Drain() {
  StopAdmission();
  const int cut = open_calls_.Drain(config_.drain_timeout, "the worker stops");
  worker_service_->Close();
  ports_->ShutdownGrpc(absl::ZeroDuration());
  return cut;
}

bool Worker::Ready() const {
  absl::MutexLock lock(&mutex_);
  return serving_ && !draining_ && !stalled_;
}

v1::LoadReport Worker::ReportLoad() const {
  const EngineLoad load = engine_->Load();
  v1::LoadReport report;
  report.set_running_requests(load.running);
  report.set_queued_requests(load.queued);
  report.set_queued_tokens(load.queued_tokens);
  report.set_queue_room(load.queue_room);
  report.set_kv_free_tokens(load.free_blocks * kBlockTokens);
  report.set_kv_capacity_tokens(model_.kv_capacity_tokens);
  report.set_accepting(Ready());
  report.set_model(model_.name);
  report.set_numerics_id(model_.numerics_id);
  report.set_context_length(model_.context_length);
  return report;
}

std::string Worker::StatusText() const {
  {
    absl::MutexLock lock(&mutex_);
    if (!serving_) {
      return absl::StrCat("ridge-worker " RIDGE_VERSION "\nstarting\n\nconfig: ", ToString(config_), "\n");
    }
  }
  return absl::StrCat("ridge-worker " RIDGE_VERSION "\n", Ready() ? "ready" : "not ready",
                      "\n\nconfig: ", ToString(config_), "\n\ndevice: ", model_.device,
                      "\ncontext: ", model_.context_length, "\nopen streams: ", open_calls_.count(),
                      "\n\nload:\n", ReportLoad().DebugString());
}

}  // namespace ridge::worker
