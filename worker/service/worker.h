// The whole worker: owns its parts in the order in which they need each other.
//
// Threads: Drain and the accessors may be called from any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics.h"
#include "common/open_calls.h"
#include "common/server_ports.h"
#include "worker/backend/backend.h"
#include "worker/loop/engine.h"
#include "worker/loop/engine_metrics.h"
#include "worker/loop/watchdog.h"
#include "worker/model/weight_source.h"
#include "worker/service/inference_service.h"
#include "worker/service/served_model.h"
#include "worker/service/task_pool.h"
#include "worker/service/worker_config.h"
#include "worker/service/worker_service.h"

namespace ridge::worker {

class Worker {
 public:
  // Takes its ports, loads the model, reserves memory and listens; ready when it returns. An error is one
  // line that names the flag or file.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerConfig& config);
  // Cancels what is still open.
  ~Worker();

  int grpc_port() const { return ports_->grpc_port(); }
  // -1 where there is none.
  int metrics_port() const { return ports_->metrics_port(); }
  std::string DescribePorts() const { return ports_->Describe(); }

  // Not ready any more, accepts no new requests; returns when the open streams ended, with the gRPC port
  // closed. The drain time-out cuts what is left then; returns how many streams that were.
  int Drain();

 private:
  explicit Worker(const WorkerConfig& config) : config_(config), engine_metrics_(&registry_) {}

  absl::Status Load();
  absl::Status LoadBackend(const WeightSource& source);
  absl::Status ReserveMemory();
  void LimitContext();
  void StartEngine();
  absl::Status OpenPorts();
  absl::Status Serve();

  void StopAdmission();
  void OnStall(bool stalled);
  void PublishHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Ready() const;
  v1::LoadReport ReportLoad() const;
  std::string StatusText() const;

  const WorkerConfig config_;
  MetricsRegistry registry_;
  EngineMetrics engine_metrics_;
  OpenCalls open_calls_;

  mutable absl::Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;  // everything below is there, and the gRPC port is open
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;  // the engine makes no progress

  ServedModel model_;
  std::unique_ptr<Backend> backend_;
  int32_t num_blocks_ = 0;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TaskPool> tasks_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<WorkerService> worker_service_;
  std::unique_ptr<ServerPorts> ports_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace ridge::worker
