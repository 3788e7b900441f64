// The whole router: owns its parts in the order in which they need each other.
//
// Threads: Drain and the accessors may be called from any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/grpc_server.h"
#include "common/http_port.h"
#include "common/metrics.h"
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

  int grpc_port() const { return grpc_->port(); }
  // -1 where there is none.
  int metrics_port() const { return http_ == nullptr ? -1 : http_->port(); }

  // Not ready any more, accepts nothing new; returns when the open streams ended or the drain time-out
  // passed.
  void Drain();

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

  std::unique_ptr<Upstreams> upstreams_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpPort> http_;
};

}  // namespace ridge::router
