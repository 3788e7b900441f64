#include "worker/service/generate_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/hash.h"
#include "common/proto_parse.h"
#include "common/status.h"

namespace ridge::worker {
namespace {

// gRPC's deadline is on the wall clock; the engine's on its own.
int64_t DeadlineNs(grpc::CallbackServerContext* context, int64_t now_ns) {
  const std::chrono::system_clock::time_point deadline = context->deadline();
  const auto now = std::chrono::system_clock::now();
  if (deadline >= now + std::chrono::hours(24 * 365)) return INT64_MAX;
  return now_ns + std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - now).count();
}

}  // namespace

GenerateCall::GenerateCall(const CallEnvironment& environment, Envelope envelope,
                           grpc::CallbackServerContext* context)
    : environment_(environment),
      envelope_(envelope),
      arrival_ns_(environment.clock->NowNs()),
      deadline_ns_(DeadlineNs(context, arrival_ns_)) {}

GenerateCall* GenerateCall::Start(const CallEnvironment& environment, Envelope envelope,
                                  grpc::CallbackServerContext* context, const grpc::ByteBuffer& request) {
  auto call = std::shared_ptr<GenerateCall>(new GenerateCall(environment, envelope, context));
  {
    absl::MutexLock lock(&call->mutex_);
    call->self_ = call;
  }
  environment.tasks->Add([call, request] { call->Prepare(request); });
  return call.get();
}

void GenerateCall::Prepare(const grpc::ByteBuffer& request) {
  std::string internal_id;
  absl::StatusOr<ResolvedCall> call = ParseAndResolve(request, &internal_id);
  absl::MutexLock lock(&mutex_);
  absl::Status status = call.status();
  if (status.ok() && cancelled_) status = absl::CancelledError("the client left");
  if (status.ok()) {
    status = environment_.engine->CheckFits(static_cast<int64_t>(call->sequence.prompt.size()),
                                            call->sequence.max_tokens);
  }
  if (!status.ok()) {
    finished_ = true;
    Finish(ToGrpc(status));
    return;
  }
  call->sequence.request_id = std::move(internal_id);
  call->sequence.arrival_ns = arrival_ns_;
  call->sequence.deadline_ns = deadline_ns_;
  Submit(*std::move(call));
}

absl::StatusOr<ResolvedCall> GenerateCall::ParseAndResolve(const grpc::ByteBuffer& bytes,
                                                           std::string* internal_id) const {
  if (envelope_ == Envelope::kGenerate) {
    v1::GenerateRequest request;
    if (absl::Status status = ParseProto(bytes, &request); !status.ok()) return status;
    *internal_id = RandomId();
    return Resolve(request, *environment_.model);
  }
  v1::ExecuteRequest request;
  if (absl::Status status = ParseProto(bytes, &request); !status.ok()) return status;
  if (request.internal_id().empty()) return InvalidField("internal_id", "empty");
  if (request.resume_size() > 0) return InvalidField("resume", "not supported yet");
  if (request.has_resolved()) return InvalidField("resolved", "not supported yet");
  if (!request.has_request()) return InvalidField("work", "request is required");
  *internal_id = request.internal_id();
  return Resolve(request.request(), *environment_.model);
}

void GenerateCall::Submit(ResolvedCall call) {
  builder_ = std::make_unique<ResponseBuilder>(call, environment_.model);
  if (envelope_ == Envelope::kExecute) {
    resolved_ = std::make_unique<v1::ResolvedRequest>(ToMessage(call, *environment_.model));
  }
  submitted_ = true;
  sequence_ = environment_.engine->Submit(std::move(call.sequence), shared_from_this());
}

void GenerateCall::OnCancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  // Before that, Prepare sees the flag.
  if (submitted_ && !ended_) environment_.engine->Cancel(sequence_, absl::CancelledError("the client left"));
}

bool GenerateCall::OnToken(const TokenEvent& token) {
  absl::MutexLock lock(&mutex_);
  const bool goes_on = builder_->AddToken(token);
  // The end follows at once and shares the message of the last token.
  if (goes_on && !token.is_last) WriteIfIdle();
  return goes_on;
}

void GenerateCall::OnEnd(const Outcome& outcome) {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  end_status_ = outcome.status;
  if (outcome.status.ok()) builder_->AddSummary(outcome);
  WriteIfIdle();
}

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  write_in_flight_ = false;
  if (!ok && !ended_) {
    environment_.engine->Cancel(sequence_, absl::CancelledError("the stream broke"));
    return;  // OnEnd finishes the call
  }
  if (!ok) end_status_ = absl::CancelledError("the stream broke");
  WriteIfIdle();
}

void GenerateCall::OnDone() {
  // Where this was the last share, the call goes with it: after the lock was released.
  std::shared_ptr<GenerateCall> self;
  {
    absl::MutexLock lock(&mutex_);
    self = std::move(self_);
  }
}

void GenerateCall::WriteIfIdle() {
  if (write_in_flight_ || finished_) return;
  if (ended_ && !end_status_.ok()) {
    finished_ = true;
    Finish(ToGrpc(end_status_));
    return;
  }
  // The resolved request travels with the first token: until then a router may still go elsewhere.
  if (!builder_->HasMessage()) return;
  writing_ = NextMessage();
  if (ended_ && !builder_->HasMessage()) {
    finished_ = true;
    StartWriteAndFinish(&writing_, grpc::WriteOptions(), grpc::Status::OK);
  } else {
    write_in_flight_ = true;
    StartWrite(&writing_);
  }
}

grpc::ByteBuffer GenerateCall::NextMessage() {
  if (envelope_ == Envelope::kGenerate) return SerializeProto(builder_->TakeMessage());
  v1::ExecuteResponse message;
  if (resolved_ != nullptr) {
    message.mutable_resolved()->Swap(resolved_.get());
    resolved_.reset();
  } else {
    *message.mutable_response() = builder_->TakeMessage();
  }
  return SerializeProto(message);
}

}  // namespace ridge::worker
