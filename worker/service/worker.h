// The whole worker: owns its parts in the order in which they need each other.
//
// Threads: Drain and the accessors may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/grpc_server.h"
#include "common/http_port.h"
#include "common/metrics.h"
#include "worker/backend/backend.h"
#include "worker/loop/engine.h"
#include "worker/loop/engine_metrics.h"
#include "worker/model/weight_source.h"
#include "worker/service/inference_service.h"
#include "worker/service/task_thread.h"
#include "worker/service/worker_config.h"
#include "worker/service/worker_service.h"

namespace ridge::worker {

class Worker {
 public:
  // Loads the model, reserves memory and listens; ready when it returns. An error is one line that names the
  // flag or file.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerConfig& config);
  ~Worker();

  int grpc_port() const { return grpc_->port(); }
  // -1 where there is none.
  int metrics_port() const { return http_ == nullptr ? -1 : http_->port(); }

  // Not ready any more, accepts nothing new; returns when the open streams ended or the drain time-out
  // passed.
  void Drain();

 private:
  explicit Worker(const WorkerConfig& config) : config_(config), engine_metrics_(&registry_) {}

  absl::Status LoadText(const WeightSource& source);
  absl::Status LoadBackend(const WeightSource& source);
  void StartEngine(const WeightSource& source);
  absl::Status Listen();
  void StopAdmission();
  v1::LoadReport LoadOfNow() const;
  std::string StatusText() const;
  int64_t KvCapacityTokens() const { return int64_t{num_blocks_} * kBlockTokens; }

  const WorkerConfig config_;
  MetricsRegistry registry_;
  EngineMetrics engine_metrics_;
  std::atomic<bool> draining_{false};

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;
  std::unique_ptr<Backend> backend_;
  int32_t num_blocks_ = 0;
  ServedModel model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TaskThread> tasks_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<WorkerService> worker_service_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpPort> http_;
};

}  // namespace ridge::worker
