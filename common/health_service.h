// grpc.health.v1: "" is liveness, each service name its readiness.
//
// Thread-safe. Unlike gRPC's built-in service it shows in reflection. Streams of Watch end with Close.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace ridge {

class HealthService : public grpc::health::v1::Health::CallbackService {
 public:
  ~HealthService() override;

  // Makes a service known, or changes its status; watchers hear of it.
  void SetServing(const std::string& service, bool serving);

  // Ends all watches, so that the server can shut down.
  void Close();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // SERVICE_UNKNOWN where the service was never set.
  Status StatusOf(const std::string& service) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Watcher* watcher);

  absl::Mutex mutex_;
  std::map<std::string, Status> statuses_ ABSL_GUARDED_BY(mutex_);
  std::set<Watcher*> watchers_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ridge
