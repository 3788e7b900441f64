#include "router/router.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace ridge::router {

Router::Router(const RouterConfig& config) : config_(config), metrics_(&registry_) {
  UpstreamOptions options;
  options.connect_timeout = config.connect_timeout;
  options.report_timeout = config.report_timeout;
  options.max_message_bytes = config.max_message_bytes;
  upstreams_ = std::make_unique<Upstreams>(config.workers, options, RealClock(), &metrics_,
                                           [this](bool ready) { SetUpstreamsReady(ready); });
  service_ = std::make_unique<InferenceService>(upstreams_.get(), &metrics_, RealClock(), &open_calls_);
}

Router::~Router() {
  {
    absl::MutexLock lock(&mutex_);
    serving_ = false;  // reports go on for a while
  }
  // Whoever calls goes first, then who is called.
  ports_.reset();
  upstreams_.reset();
}

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const RouterConfig& config) {
  auto router = std::unique_ptr<Router>(new Router(config));
  if (absl::Status status = router->Listen(); !status.ok()) return status;
  return router;
}

absl::Status Router::Listen() {
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
  if (absl::Status status = ports_->Serve({service_.get()}); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  serving_ = true;
  PublishHealth();
  return absl::OkStatus();
}

int Router::Drain() {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    PublishHealth();
  }
  const int cut = open_calls_.Drain(config_.drain_timeout, "the router stops");
  ports_->ShutdownGrpc(absl::ZeroDuration());
  return cut;
}

void Router::SetUpstreamsReady(bool ready) {
  absl::MutexLock lock(&mutex_);
  upstreams_ready_ = ready;
  PublishHealth();
}

void Router::PublishHealth() {
  // The first reports may come before the port is open.
  if (serving_) ports_->SetServing("ridge.v1.Inference", upstreams_ready_ && !draining_);
}

bool Router::Ready() const {
  absl::MutexLock lock(&mutex_);
  return serving_ && upstreams_ready_ && !draining_;
}

std::string Router::StatusText() const {
  return absl::StrCat("ridge-router " RIDGE_VERSION "\n", Ready() ? "ready" : "not ready", "\n",
                      ToString(config_), "\n\nworkers\n", upstreams_->Describe());
}

}  // namespace ridge::router
