#include "worker/service/generate_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/logging.h"
#include "common/proto_parse.h"
#include "common/status.h"

namespace ridge::worker {
namespace {

constexpr size_t kMaxTenantBytes = 256;  // of a tenant's name or salt

// gRPC's deadline is on the wall clock; the engine's on its own.
int64_t DeadlineNs(WallTime deadline, WallTime now, int64_t now_ns) {
  if (deadline == WallTime::max()) return INT64_MAX;
  return now_ns + std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - now).count();
}

absl::StatusOr<ResolvedCall> ResolveGenerate(const grpc::ByteBuffer& bytes, const ServedModel& model) {
  v1::GenerateRequest request;
  absl::Status status = ParseProto(bytes, &request);
  status.Update(RefuseUnknownFields(request));
  if (!status.ok()) return status;
  absl::StatusOr<ResolvedCall> call = Resolve(request, model);
  if (call.ok()) call->spec.request_id = RandomId();
  return call;
}

absl::StatusOr<ResolvedCall> ResolveExecute(const grpc::ByteBuffer& bytes, const ServedModel& model) {
  v1::ExecuteRequest request;
  absl::Status status = ParseProto(bytes, &request);
  status.Update(RefuseUnknownFields(request.request()));  // named as the client knows them
  status.Update(RefuseUnknownFields(request));
  if (!status.ok()) return status;
  if (request.internal_id().empty()) return InvalidField("internal_id", "required");
  if (request.work_case() == v1::ExecuteRequest::WORK_NOT_SET) {
    return InvalidField("work", "one of request, resolved is required");
  }
  if (request.tenant().size() > kMaxTenantBytes) {
    return InvalidField("tenant", absl::StrCat("longer than ", kMaxTenantBytes, " bytes"));
  }
  if (request.cache_salt().size() > kMaxTenantBytes) {
    return InvalidField("cache_salt", absl::StrCat("longer than ", kMaxTenantBytes, " bytes"));
  }
  if (request.resume_size() > 0) return InvalidField("resume", "not supported yet");
  absl::StatusOr<ResolvedCall> call =
      request.has_request() ? Resolve(request.request(), model) : Resolve(request.resolved(), model);
  if (!call.ok()) return call.status();
  call->spec.request_id = request.internal_id();
  call->spec.tenant = request.tenant();
  call->spec.cache_salt = request.cache_salt();
  return call;
}

}  // namespace

GenerateCall::GenerateCall(const CallEnvironment& environment, Envelope envelope,
                           grpc::CallbackServerContext* context)
    : environment_(environment),
      envelope_(envelope),
      context_(context),
      arrival_ns_(environment.clock->NowNs()),
      arrival_(std::chrono::system_clock::now()),
      deadline_(DeadlineOf(*context)),
      deadline_ns_(DeadlineNs(deadline_, arrival_, arrival_ns_)) {}

GenerateCall* GenerateCall::Start(const CallEnvironment& environment, Envelope envelope,
                                  grpc::CallbackServerContext* context, const grpc::ByteBuffer& request) {
  auto call = std::shared_ptr<GenerateCall>(new GenerateCall(environment, envelope, context));
  {
    absl::MutexLock lock(&call->mutex_);
    call->self_ = call;
  }
  environment.open_calls->Enter(call.get());
  // The copy shares the bytes.
  environment.tasks->Add([call, request] { call->Prepare(request); });
  return call.get();
}

void GenerateCall::Prepare(const grpc::ByteBuffer& request) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_.has_value()) {
      outcome_ = stopped_;
      Advance();
      return;
    }
  }
  absl::StatusOr<ResolvedCall> call = envelope_ == Envelope::kGenerate
                                          ? ResolveGenerate(request, *environment_.model)
                                          : ResolveExecute(request, *environment_.model);
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = Submit(std::move(call)); !status.ok()) outcome_ = status;
  Advance();
}

absl::Status GenerateCall::Submit(absl::StatusOr<ResolvedCall> call) {
  if (!call.ok()) return call.status();
  if (stopped_.has_value()) return *stopped_;
  if (environment_.clock->NowNs() >= deadline_ns_) return absl::DeadlineExceededError("the deadline passed");
  if (environment_.engine->Load().draining) return absl::UnavailableError("the server is draining");
  absl::Status fits =
      environment_.engine->CheckFits(static_cast<int64_t>(call->spec.prompt.size()), call->spec.max_tokens);
  if (!fits.ok()) return fits;
  LogDebug("request {} ({}): {} prompt tokens, up to {} more", call->spec.request_id, call->client_request_id,
           call->spec.prompt.size(), call->spec.max_tokens);
  call->spec.arrival_ns = arrival_ns_;
  call->spec.deadline_ns = deadline_ns_;
  stream_.emplace(*call, environment_.model, arrival_ns_);
  if (envelope_ == Envelope::kExecute) resolved_ = ToProto(*call, *environment_.model);
  const int32_t num_choices = call->num_choices;
  sequence_ = environment_.engine->Submit(std::move(call->spec), shared_from_this(), num_choices);
  return absl::OkStatus();
}

absl::Status GenerateCall::ClientLeft() const {
  return CancelledStatus(arrival_, deadline_, std::chrono::system_clock::now());
}

void GenerateCall::Stop(const absl::Status& why) {
  if (stopped_.has_value()) return;
  stopped_ = why;
  if (stream_.has_value()) environment_.engine->Cancel(sequence_, why);
}

void GenerateCall::OnCancel() {
  absl::MutexLock lock(&mutex_);
  client_is_gone_ = true;
  Stop(ClientLeft());
}

void GenerateCall::Cut(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  Stop(status);
}

void GenerateCall::OnPromptLogprobs(std::vector<PromptLogprob> logprobs) {
  absl::MutexLock lock(&mutex_);
  stream_->AddPromptLogprobs(std::move(logprobs));
}

bool GenerateCall::OnToken(const TokenEvent& token) {
  absl::MutexLock lock(&mutex_);
  const bool goes_on = stream_->AddToken(token);
  // The end follows at once and shares the message of the last token.
  if (goes_on && !token.is_last) Advance();
  return goes_on;
}

void GenerateCall::OnChoiceEnd(int32_t choice, const Outcome& outcome) {
  absl::MutexLock lock(&mutex_);
  stream_->EndChoice(choice, outcome.reason);
}

void GenerateCall::OnEnd(const Outcome& outcome) {
  absl::MutexLock lock(&mutex_);
  if (outcome.status.ok()) stream_->End(outcome);
  outcome_ = outcome.status;
  Advance();
}

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  write_in_flight_ = false;
  if (!ok) {
    // Nothing reaches the client any more; the call is finished when the sequence has ended.
    client_is_gone_ = true;
    Stop(ClientLeft());
  }
  Advance();
}

void GenerateCall::OnDone() {
  environment_.open_calls->Leave(this);
  // Where this was the last share, the call goes with it: after the lock was released.
  std::shared_ptr<GenerateCall> self;
  absl::MutexLock lock(&mutex_);
  self = std::move(self_);
}

void GenerateCall::Advance() {
  if (write_in_flight_ || finished_) return;
  const bool failed = outcome_.has_value() && !outcome_->ok();
  if (!client_is_gone_ && !failed && HasMessage()) {
    writing_ = NextMessage();
    if (outcome_.has_value() && !HasMessage()) {
      finished_ = true;
      StartWriteAndFinish(&writing_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      write_in_flight_ = true;
      StartWrite(&writing_);
    }
  } else if (outcome_.has_value()) {
    finished_ = true;
    if (const auto delay = RetryAfter(*outcome_); delay.has_value())
      context_->AddTrailingMetadata(kRetryTrailer, RetryTrailer(*delay));
    Finish(ToGrpc(*outcome_));
  }
}

bool GenerateCall::HasMessage() const {
  return resolved_.has_value() || (stream_.has_value() && stream_->HasMessage());
}

grpc::ByteBuffer GenerateCall::NextMessage() {
  if (envelope_ == Envelope::kGenerate) return SerializeProto(stream_->TakeMessage());
  v1::ExecuteResponse message;
  if (resolved_.has_value()) {
    message.mutable_resolved()->Swap(&*resolved_);
    resolved_.reset();
  } else {
    *message.mutable_response() = stream_->TakeMessage();
  }
  return SerializeProto(message);
}

}  // namespace ridge::worker
