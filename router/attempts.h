// What all relayed calls have in common: which workers a call may still try, and what it passes on.
//
// Thread-compatible: one call at a time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"
#include "router/upstreams.h"

namespace ridge::router {

class Attempts {
 public:
  Attempts(Upstreams* upstreams, std::string model);

  // The next worker for this call. Where none is left, the error says why: the last worker's failure, or the
  // policy's reason before the first attempt.
  absl::StatusOr<Lease> Next();

  // Whether `status`, with which `worker` ended the call, is the loss of the worker and not its answer. A
  // lost worker is not tried again. A CANCELLED that this router did not cause is a worker that shut down.
  bool WorkerLost(const Upstream& worker, const grpc::Status& status);

  // What the client hears when a worker was lost and nothing else can be tried.
  const grpc::Status& last_failure() const { return last_failure_; }

 private:
  Upstreams* const upstreams_;
  const std::string model_;
  std::vector<const Upstream*> tried_;
  grpc::Status last_failure_;
};

// Gives the call to the worker the deadline of the client's call.
void PassDeadlineOn(const grpc::CallbackServerContext& from, grpc::ClientContext* to);

// Whether a worker ended the call with `status` because the call's deadline passed there first.
bool EndedByDeadline(const grpc::CallbackServerContext& context, const grpc::Status& status);

// The status of a call that the client cancelled, or whose deadline passed.
grpc::Status CancelledStatus(const grpc::CallbackServerContext& context);

}  // namespace ridge::router
