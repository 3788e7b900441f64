#include "router/router_metrics.h"

#include "absl/status/status.h"

namespace ridge::router {

RouterMetrics::RouterMetrics(MetricsRegistry* registry)
    : registry_(*registry),
      requests_in_flight_(
          registry->Gauge("ridge_router_requests_in_flight", "Generate calls that are open.")),
      time_to_first_token_(registry->Histogram("ridge_router_time_to_first_token_seconds",
                                               "From the arrival of a Generate call to its first message.",
                                               LatencyBuckets())),
      request_duration_(registry->Histogram("ridge_router_request_duration_seconds",
                                            "From the arrival of a Generate call to its end.",
                                            LatencyBuckets())) {
  // All codes are there, as 0, before the first request: a rate needs a start.
  for (int code = grpc::StatusCode::OK; code <= grpc::StatusCode::UNAUTHENTICATED; ++code) {
    Requests(static_cast<grpc::StatusCode>(code));
  }
}

void RouterMetrics::RequestEnded(const grpc::Status& status, double seconds) {
  requests_in_flight_.Decrement();
  request_duration_.Observe(seconds);
  Requests(status.error_code()).Increment();
}

prometheus::Gauge& RouterMetrics::WorkerUp(const std::string& worker) {
  return registry_.Gauge("ridge_router_worker_up",
                         "1 while the worker reports that it accepts requests, else 0.",
                         {{"worker", worker}});
}

prometheus::Counter& RouterMetrics::WorkerRequests(const std::string& worker) {
  return registry_.Counter("ridge_router_worker_requests_total", "Generate calls sent to the worker.",
                           {{"worker", worker}});
}

prometheus::Counter& RouterMetrics::Requests(grpc::StatusCode code) {
  const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  return registry_.Counter("ridge_router_requests_total", "Generate calls that ended, by gRPC status.",
                           {{"code", name}});
}

}  // namespace ridge::router
