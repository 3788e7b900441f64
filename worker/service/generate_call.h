// One streaming call: from raw request bytes to the last message. Serves Inference.Generate and
// Worker.Execute, which differ in their envelopes only.
//
// Threads: gRPC's callbacks, the task pool and the output thread meet here under one mutex. At most one
// write is in flight; what arrives meanwhile is merged into the next message. Ownership: the call lives until
// gRPC is done with it and its sequence has ended. The call is finished once, after the sequence ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "common/open_calls.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "worker/decision/sequence.h"
#include "worker/loop/engine.h"
#include "worker/service/request.h"
#include "worker/service/response_stream.h"
#include "worker/service/task_pool.h"

namespace ridge::worker {

// What every call needs; outlives all calls.
struct CallEnvironment {
  const ServedModel* model;
  Engine* engine;
  TaskPool* tasks;
  Clock* clock;
  OpenCalls* open_calls;
};

class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public TokenSink,
                           public OpenCall,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  enum class Envelope {
    kGenerate,  // GenerateRequest to GenerateResponse
    kExecute,   // ExecuteRequest to ExecuteResponse, the first of which is `resolved`
  };

  // Begins a call; the result belongs to gRPC until OnDone.
  static GenerateCall* Start(const CallEnvironment& environment, Envelope envelope,
                             grpc::CallbackServerContext* context, const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Cut(const absl::Status& status) override;

  void OnPromptLogprobs(std::vector<PromptLogprob> logprobs) override;
  bool OnToken(const TokenEvent& token) override;
  void OnChoiceEnd(int32_t choice, const Outcome& outcome) override;
  void OnEnd(const Outcome& outcome) override;

 private:
  GenerateCall(const CallEnvironment& environment, Envelope envelope, grpc::CallbackServerContext* context);

  // On a thread of the pool: from the request to the engine, or to an error.
  void Prepare(const grpc::ByteBuffer& request);
  absl::Status Submit(absl::StatusOr<ResolvedCall> call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the call before its time: the engine drops the sequence, or Prepare sees it where there is none yet.
  void Stop(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the client's going ends the call.
  absl::Status ClientLeft() const;

  // Starts the next write, or finishes the call, where nothing is in flight and there is something to do.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasMessage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  grpc::ByteBuffer NextMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallEnvironment environment_;
  const Envelope envelope_;
  grpc::CallbackServerContext* const context_;  // until the call is finished
  const int64_t arrival_ns_;
  const WallTime arrival_;
  const WallTime deadline_;
  const int64_t deadline_ns_;  // the same on the engine's clock

  absl::Mutex mutex_;
  std::shared_ptr<GenerateCall> self_ ABSL_GUARDED_BY(mutex_);           // gRPC's share
  std::optional<v1::ResolvedRequest> resolved_ ABSL_GUARDED_BY(mutex_);  // to be sent first
  std::optional<ResponseStream> stream_ ABSL_GUARDED_BY(mutex_);         // once there is a sequence
  SequenceId sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer writing_ ABSL_GUARDED_BY(mutex_);
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool client_is_gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> stopped_ ABSL_GUARDED_BY(mutex_);  // why the call ends before its time
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);  // once there is nothing more to come
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ridge::worker
