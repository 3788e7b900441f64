#include "router/router.h"

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/logging.h"

namespace ridge::router {

Router::Router(const RouterConfig& config) : config_(config), metrics_(&registry_) {
  UpstreamOptions options;
  options.connect_timeout = config.connect_timeout;
  options.report_timeout = config.report_timeout;
  options.max_message_bytes = config.max_message_bytes;
  upstreams_ = std::make_unique<Upstreams>(config.workers, options, RealClock(), &metrics_,
                                           [this](bool ready) { SetUpstreamsReady(ready); });
  service_ = std::make_unique<InferenceService>(upstreams_.get(), &metrics_, RealClock());
}

Router::~Router() {
  // Whoever calls goes first, then who is called.
  http_.reset();
  if (grpc_ != nullptr) grpc_->Shutdown(absl::ZeroDuration());
  upstreams_.reset();
}

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const RouterConfig& config) {
  auto router = std::unique_ptr<Router>(new Router(config));
  if (absl::Status status = router->Listen(); !status.ok()) return status;
  return router;
}

absl::Status Router::Listen() {
  GrpcServerOptions options;
  options.listen = config_.listen;
  options.max_message_bytes = config_.max_message_bytes;
  absl::StatusOr<std::unique_ptr<GrpcServer>> grpc = GrpcServer::Start(options, {service_.get()});
  if (!grpc.ok()) return grpc.status();
  {
    absl::MutexLock lock(&mutex_);
    grpc_ = *std::move(grpc);
    PublishHealth();
  }
  if (config_.metrics_port < 0) return absl::OkStatus();
  HttpPortOptions http_options;
  http_options.host = ListenHost(config_);
  http_options.port = config_.metrics_port;
  http_options.metrics = &registry_;
  http_options.ready = [this] { return Ready(); };
  http_options.status = [this] { return StatusText(); };
  absl::StatusOr<std::unique_ptr<HttpPort>> http = HttpPort::Start(std::move(http_options));
  if (!http.ok()) return http.status();
  http_ = *std::move(http);
  return absl::OkStatus();
}

void Router::Drain() {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    PublishHealth();
  }
  grpc_->Shutdown(config_.drain_timeout);
}

void Router::SetUpstreamsReady(bool ready) {
  absl::MutexLock lock(&mutex_);
  upstreams_ready_ = ready;
  PublishHealth();
}

void Router::PublishHealth() {
  // The first reports may come before the server listens.
  if (grpc_ != nullptr) grpc_->SetServing("ridge.v1.Inference", upstreams_ready_ && !draining_);
}

bool Router::Ready() const {
  absl::MutexLock lock(&mutex_);
  return upstreams_ready_ && !draining_;
}

std::string Router::StatusText() const {
  return absl::StrCat("ridge-router " RIDGE_VERSION "\n", Ready() ? "ready" : "not ready", "\n",
                      ToString(config_), "\n\nworkers\n", upstreams_->Describe());
}

}  // namespace ridge::router
