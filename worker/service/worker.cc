#include "worker/service/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/status.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/gguf_source.h"
#include "worker/model/open_model.h"
#include "worker/text/gguf_tokenizer.h"

namespace ridge::worker {
namespace {

constexpr char kInferenceName[] = "ridge.v1.Inference";
constexpr char kWorkerName[] = "ridge.v1.Worker";

// Logs how long a phase of the start took.
class Phase {
 public:
  explicit Phase(const char* name) : name_(name), begin_ns_(RealClock()->NowNs()) {}
  ~Phase() { LogInfo("start: {} in {:.3f} s", name_, (RealClock()->NowNs() - begin_ns_) * 1e-9); }

 private:
  const char* const name_;
  const int64_t begin_ns_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerConfig& config) {
  auto worker = std::unique_ptr<Worker>(new Worker(config));
  std::unique_ptr<WeightSource> source;
  {
    Phase phase("model opened");
    absl::StatusOr<std::unique_ptr<WeightSource>> opened = OpenModel(config.model);
    if (!opened.ok()) return InvalidField("--model", opened.status().message());
    source = *std::move(opened);
  }
  if (absl::Status status = worker->LoadText(*source); !status.ok()) return status;
  if (absl::Status status = worker->LoadBackend(*source); !status.ok()) return status;
  worker->StartEngine(*source);
  if (absl::Status status = worker->Listen(); !status.ok()) return status;
  return worker;
}

Worker::~Worker() {
  // Whoever calls goes first, then who is called.
  http_.reset();
  if (worker_service_ != nullptr) worker_service_->Close();
  if (grpc_ != nullptr) grpc_->Shutdown(absl::ZeroDuration());
  tasks_.reset();
  engine_.reset();
}

absl::Status Worker::LoadText(const WeightSource& source) {
  Phase phase("tokenizer loaded");
  model_.no_chat_reason = "the model has no tokenizer";
  const auto* gguf = dynamic_cast<const GgufSource*>(&source);
  if (gguf != nullptr) {
    absl::StatusOr<TokenizerSpec> spec = TokenizerSpecFromGguf(gguf->file());
    if (!spec.ok() && spec.status().code() != absl::StatusCode::kNotFound) return spec.status();
    if (spec.ok()) {
      if (static_cast<int32_t>(spec->tokens.size()) > source.config().vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat(config_.model, ": the tokenizer has ",
                                                       spec->tokens.size(), " tokens, the model ",
                                                       source.config().vocab_size));
      }
      absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*std::move(spec));
      if (!tokenizer.ok())
        return absl::InvalidArgumentError(absl::StrCat(config_.model, ": ", tokenizer.status().message()));
      tokenizer_ = *std::move(tokenizer);
    }
  }
  if (tokenizer_ == nullptr) {
    if (!config_.chat_template.empty()) return InvalidField("--chat_template", model_.no_chat_reason);
    return absl::OkStatus();
  }
  model_.tokenizer = tokenizer_.get();
  absl::StatusOr<ChatTemplate> chat = config_.chat_template.empty()
                                          ? ChatTemplate::Recognise(tokenizer_->chat_template())
                                          : ChatTemplate::FromName(config_.chat_template);
  if (chat.ok()) {
    chat_ = std::make_unique<ChatTemplate>(*std::move(chat));
    model_.chat = chat_.get();
  } else if (!config_.chat_template.empty()) {
    return InvalidField("--chat_template", chat.status().message());
  } else {
    model_.no_chat_reason = tokenizer_->chat_template().empty() ? "the model has no chat template"
                                                                : std::string(chat.status().message());
    LogWarning("no chat: {}", model_.no_chat_reason);
  }
  return absl::OkStatus();
}

absl::Status Worker::LoadBackend(const WeightSource& source) {
  {
    Phase phase("weights packed");
    absl::StatusOr<std::unique_ptr<CpuBackend>> backend =
        CpuBackend::Create(source, {.threads = config_.threads});
    if (!backend.ok()) return backend.status();
    const CpuBackend* cpu = backend->get();
    backend_ = *std::move(backend);
    registry_.GaugeCallback("ridge_fp16_saturations_total", "Activations that fp16 could not hold.", {},
                            [cpu] { return static_cast<double>(cpu->saturations()); });
  }
  const int64_t blocks = config_.kv_cache_bytes / backend_->Info().kv_block_bytes;
  if (blocks < 1) {
    return InvalidField("--kv_cache_bytes",
                        absl::StrCat(config_.kv_cache_bytes, " is less than one block of ",
                                     backend_->Info().kv_block_bytes, " bytes"));
  }
  num_blocks_ = static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX));
  Phase phase("memory reserved");
  return backend_->Reserve(num_blocks_, {config_.max_batch, config_.step_tokens});
}

void Worker::StartEngine(const WeightSource& source) {
  const ModelConfig& config = source.config();
  int64_t context = std::min<int64_t>(config.context_length, KvCapacityTokens());
  if (config_.max_context > 0) context = std::min<int64_t>(context, config_.max_context);
  model_.name = config_.served_model_name.empty() ? config.name : config_.served_model_name;
  model_.numerics_id = backend_->Info().numerics_id;
  model_.vocab_size = config.vocab_size;
  model_.context_length = static_cast<int32_t>(context);
  model_.eos_token_ids = config.eos_token_ids;
  LogInfo("model: {} ({}, {:.1f} M parameters, context {}), device: {}, KV memory for {} tokens, numerics {}",
          model_.name, ArchitectureName(config.architecture), config.num_parameters() * 1e-6,
          model_.context_length, backend_->Info().device, KvCapacityTokens(), model_.numerics_id);

  engine_ = std::make_unique<Engine>(EngineConfig{.num_blocks = num_blocks_,
                                                  .max_running = config_.max_batch,
                                                  .step_tokens = config_.step_tokens,
                                                  .chunk_tokens = config_.chunk_tokens},
                                     backend_.get(), RealClock(), &engine_metrics_);
  tasks_ = std::make_unique<TaskThread>();
  const CallEnvironment environment{&model_, engine_.get(), tasks_.get(), RealClock()};
  inference_ = std::make_unique<InferenceService>(
      environment, ModelDetails{ArchitectureName(config.architecture), config.num_parameters(),
                                backend_->Info().device, KvCapacityTokens()});
  worker_service_ = std::make_unique<WorkerService>(
      environment, [this] { return LoadOfNow(); }, [this] { StopAdmission(); });
}

absl::Status Worker::Listen() {
  GrpcServerOptions options;
  options.listen = config_.listen;
  options.max_message_bytes = config_.max_message_bytes;
  absl::StatusOr<std::unique_ptr<GrpcServer>> grpc =
      GrpcServer::Start(options, {inference_.get(), worker_service_.get()});
  if (!grpc.ok()) return grpc.status();
  grpc_ = *std::move(grpc);
  if (config_.metrics_port >= 0) {
    HttpPortOptions http_options;
    http_options.host = ListenHost(config_);
    http_options.port = config_.metrics_port;
    http_options.metrics = &registry_;
    http_options.ready = [this] { return !draining_; };
    http_options.status = [this] { return StatusText(); };
    absl::StatusOr<std::unique_ptr<HttpPort>> http = HttpPort::Start(std::move(http_options));
    if (!http.ok()) return http.status();
    http_ = *std::move(http);
  }
  grpc_->SetServing(kInferenceName, true);
  grpc_->SetServing(kWorkerName, true);
  return absl::OkStatus();
}

void Worker::StopAdmission() {
  draining_ = true;
  grpc_->SetServing(kInferenceName, false);
  grpc_->SetServing(kWorkerName, false);
  engine_->Drain();
}

void Worker::Drain() {
  StopAdmission();
  worker_service_->Close();
  grpc_->Shutdown(config_.drain_timeout);
}

v1::LoadReport Worker::LoadOfNow() const {
  const EngineLoad load = engine_->Load();
  v1::LoadReport report;
  report.set_running_requests(load.running);
  report.set_queued_requests(load.queued);
  report.set_queued_tokens(load.queued_tokens);
  report.set_kv_free_tokens(load.free_blocks * kBlockTokens);
  report.set_kv_capacity_tokens(KvCapacityTokens());
  report.set_accepting(!draining_);
  report.set_model(model_.name);
  report.set_numerics_id(model_.numerics_id);
  return report;
}

std::string Worker::StatusText() const {
  return absl::StrCat("ridge-worker " RIDGE_VERSION "\n", draining_ ? "draining" : "ready", "\n",
                      ToString(config_), "\n\nmodel ", model_.name, "\ndevice ", backend_->Info().device,
                      "\nnumerics ", model_.numerics_id, "\n", LoadOfNow().DebugString());
}

}  // namespace ridge::worker
