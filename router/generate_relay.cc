#include "router/generate_relay.h"

#include <utility>

#include "common/hash.h"
#include "common/logging.h"
#include "common/proto_parse.h"
#include "common/status.h"
#include "common/utf8.h"

namespace ridge::router {
namespace {

std::string ClientMetadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(key);
  if (found == metadata.end()) return "";
  const std::string value(found->second.data(), found->second.size());
  // A header may hold any byte, a proto's string may not.
  return IsValidUtf8(value) ? value : "";
}

}  // namespace

// The call at one worker. The hold keeps OnDone away while the next read waits for the client.
class GenerateRelay::Call final : public grpc::ClientReadReactor<v1::ExecuteResponse> {
 public:
  Call(GenerateRelay* relay, Lease lease) : relay_(relay), lease_(std::move(lease)) {
    PassDeadlineOn(*relay->context_, &context_);
  }

  void Start() {
    lease_.upstream()->CountGenerate();
    lease_.upstream()->worker()->async()->Execute(&context_, &relay_->request_, this);
    AddHold();
    StartRead(&message_);
    StartCall();
  }
  void ReadNext() { StartRead(&message_); }
  // No read follows.
  void Abandon() {
    context_.TryCancel();
    RemoveHold();
  }
  void Cancel() { context_.TryCancel(); }
  const Upstream& upstream() const { return *lease_.upstream(); }

  void OnReadDone(bool ok) override {
    if (ok) {
      relay_->OnMessage(message_);
    } else {
      RemoveHold();
    }
  }
  void OnDone(const grpc::Status& status) override { relay_->OnCallDone(status); }

 private:
  GenerateRelay* const relay_;
  const Lease lease_;
  grpc::ClientContext context_;
  v1::ExecuteResponse message_;
};

GenerateRelay::GenerateRelay(Upstreams* upstreams, RouterMetrics* metrics, const Clock* clock,
                             grpc::CallbackServerContext* context)
    : upstreams_(upstreams),
      metrics_(metrics),
      clock_(clock),
      context_(context),
      arrival_ns_(clock->NowNs()) {
  metrics_->RequestBegan();
}

GenerateRelay::~GenerateRelay() = default;

void GenerateRelay::Start(const grpc::ByteBuffer& request) {
  const absl::Status parsed = ParseProto(request, request_.mutable_request());
  if (!parsed.ok()) {
    End(ToGrpc(parsed));
    return;
  }
  request_.set_internal_id(RandomId());
  request_.set_traceparent(ClientMetadata(*context_, "traceparent"));
  request_.set_tracestate(ClientMetadata(*context_, "tracestate"));
  attempts_ = std::make_unique<Attempts>(upstreams_, request_.request().model());
  TryNextWorker();
}

void GenerateRelay::TryNextWorker() {
  absl::StatusOr<Lease> lease = attempts_->Next();
  if (!lease.ok()) {
    End(ToGrpc(lease.status()));
    return;
  }
  auto call = std::make_unique<Call>(this, *std::move(lease));
  Call* started = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) {
      started = call.get();
      call_ = std::move(call);
    }
  }
  if (started == nullptr) {
    End(CancelledStatus(*context_));
    return;
  }
  started->Start();
}

void GenerateRelay::OnMessage(const v1::ExecuteResponse& message) {
  if (!message.has_response()) {
    // `resolved` is for resumption.
    absl::MutexLock lock(&mutex_);
    call_->ReadNext();
    return;
  }
  if (!std::exchange(output_began_, true)) metrics_->FirstMessage(SecondsSinceArrival());
  write_ = SerializeProto(message.response());
  StartWrite(&write_);
}

void GenerateRelay::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  if (ok) {
    call_->ReadNext();
  } else {
    cancelled_ = true;  // nobody is left to write to; OnCancel may come later than the end of the call
    call_->Abandon();
  }
}

void GenerateRelay::OnCancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (call_ != nullptr) call_->Cancel();
}

void GenerateRelay::OnCallDone(const grpc::Status& status) {
  std::unique_ptr<Call> call;
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    call = std::move(call_);
    cancelled = cancelled_;
  }
  if (cancelled || EndedByDeadline(*context_, status)) {
    call.reset();
    End(CancelledStatus(*context_));
    return;
  }
  const bool lost = attempts_->WorkerLost(call->upstream(), status);
  call.reset();
  if (lost && !output_began_) {
    TryNextWorker();
  } else {
    End(lost ? attempts_->last_failure() : status);
  }
}

void GenerateRelay::End(const grpc::Status& status) {
  metrics_->RequestEnded(status, SecondsSinceArrival());
  LogDebug("request {} ({}) ended: {} {}", request_.internal_id(), request_.request().request_id(),
           static_cast<int>(status.error_code()), status.error_message());
  Finish(status);
}

double GenerateRelay::SecondsSinceArrival() const {
  return static_cast<double>(clock_->NowNs() - arrival_ns_) * 1e-9;
}

}  // namespace ridge::router
