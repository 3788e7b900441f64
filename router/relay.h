// What all relayed calls have in common: which workers a call may still try, what it passes on, and how it
// ends.
//
// A worker that is lost before anything reached the client is replaced by another one, unseen by the client.
// So is one that has no room for the request (RESOURCE_EXHAUSTED), as long as another has: in its queue, or
// more KV memory where the request can never fit. Every other outcome of a worker is the call's outcome.
//
// Threads: gRPC's callbacks of both sides, one mutex.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/cancellation.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"
#include "router/upstreams.h"

namespace ridge::router {

// The call at one worker. It has the deadline of the client's call.
class Attempt : public UpstreamCall {
 public:
  Attempt(Lease lease, const grpc::CallbackServerContext& client);
  ~Attempt() override;

  // Once. Its end is told to Relay::AttemptEnded.
  virtual void Start() = 0;

  void Cancel() override { context_.TryCancel(); }
  const Lease& lease() const { return lease_; }
  grpc::ClientContext* context() { return &context_; }

 private:
  const Lease lease_;
  grpc::ClientContext context_;
};

class Relay {
 protected:
  Relay(Upstreams* upstreams, grpc::CallbackServerContext* client);
  // When the client's call is done; at that time no attempt is open.
  ~Relay() = default;

  // Once: tries workers that serve `model`.
  void StartRelay(std::string model);
  // Ends the call, soon, with a status that is no worker's.
  void Stop(const grpc::Status& why);
  // The client left, or its time is up.
  void ClientLeft();
  // By an attempt, as its last act.
  void AttemptEnded(const grpc::Status& status);

  const grpc::CallbackServerContext& client() const { return *client_; }
  grpc::CallbackServerContext* mutable_client() { return client_; }

 private:
  virtual std::unique_ptr<Attempt> NewAttempt(Lease lease) = 0;
  // Whether the client has seen something of this call, so that it cannot begin anew elsewhere.
  virtual bool OutputBegan() const = 0;
  // The one outcome; the relay may be gone afterwards.
  virtual void End(const grpc::Status& status) = 0;

  // Opens the call at the next worker, or ends it.
  void TryNextWorker();
  // Whether the worker said that it has no room; then what another one must have.
  static bool IsRefusal(const grpc::Status& status);
  void NoteRefusal(const Upstream& worker, const grpc::Status& status);
  // Whether `status` is the loss of the worker and not its answer. A CANCELLED that this router did not cause
  // is a worker that shut down; a RESOURCE_EXHAUSTED in the middle of the output that no worker said is the
  // end of the connection. (Before the output it may be the request's own, as a message that is too long.)
  bool IsLoss(const grpc::Status& status) const;

  Upstreams* const upstreams_;
  grpc::CallbackServerContext* const client_;
  const WallTime arrival_;
  std::string model_;
  std::vector<const Upstream*> tried_;  // and lost, or without room
  Need need_;                           // of the next one
  grpc::Status last_failure_;

  absl::Mutex mutex_;
  std::unique_ptr<Attempt> attempt_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ridge::router
