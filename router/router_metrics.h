// The router's metrics (docs/metrics.md). Thread-safe; the registry outlives this object.
#pragma once

#include <string>

#include "common/metrics.h"
#include "grpcpp/support/status.h"

namespace ridge::router {

class RouterMetrics {
 public:
  explicit RouterMetrics(MetricsRegistry* registry);

  void RequestBegan() { requests_in_flight_.Increment(); }
  void FirstMessage(double seconds) { time_to_first_token_.Observe(seconds); }
  // The one outcome of a request.
  void RequestEnded(const grpc::Status& status, double seconds);

  prometheus::Gauge& WorkerUp(const std::string& worker);
  prometheus::Counter& WorkerRequests(const std::string& worker);

 private:
  prometheus::Counter& Requests(grpc::StatusCode code);

  MetricsRegistry& registry_;
  prometheus::Gauge& requests_in_flight_;
  prometheus::Histogram& time_to_first_token_;
  prometheus::Histogram& request_duration_;
};

}  // namespace ridge::router
