// The whole router: owns its parts in the order in which they need each other.
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
#include "router/router_config.h"
#include "router/router_metrics.h"
#include "router/service.h"
#include "router/upstreams.h"

namespace ridge::router {

class Router {
 public:
  // Listens and starts to watch the workers; does not wait for them. An error names the flag.
  static absl::StatusOr<std::unique_ptr<Router>> Start(const RouterConfig& config);
  ~Router();

  int grpc_port() const { return ports_->grpc_port(); }
  // -1 where there is none.
  int metrics_port() const { return ports_->metrics_port(); }
  std::string DescribePorts() const { return ports_->Describe(); }

  // Not ready any more, accepts nothing new; returns when the open streams ended, with the gRPC port closed.
  // The drain time-out cuts what is left then; returns how many streams that were.
  int Drain();

 private:
  explicit Router(const RouterConfig& config);

  absl::Status Listen();
  void SetUpstreamsReady(bool ready);
  bool Ready() const;
  std::string StatusText() const;
  void PublishHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RouterConfig config_;
  MetricsRegistry registry_;
  RouterMetrics metrics_;

  mutable absl::Mutex mutex_;
  bool upstreams_ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;  // the gRPC port is open

  OpenCalls open_calls_;
  std::unique_ptr<Upstreams> upstreams_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<ServerPorts> ports_;
};

}  // namespace ridge::router
