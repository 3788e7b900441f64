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
class GenerateRelay::Call final : public Attempt, public grpc::ClientReadReactor<v1::ExecuteResponse> {
 public:
  Call(GenerateRelay* relay, Lease lease) : Attempt(std::move(lease), *relay->context_), relay_(relay) {}

  void Start() override {
    lease().upstream()->CountGenerate();
    lease().upstream()->worker()->async()->Execute(context(), &relay_->request_, this);
    AddHold();
    StartRead(&message_);
    StartCall();
  }
  void ReadNext() { StartRead(&message_); }
  // No read follows.
  void Abandon() { RemoveHold(); }

  void OnReadDone(bool ok) override {
    if (ok) {
      lease().upstream()->SawLife();
      relay_->call_ = this;
      relay_->OnMessage(message_);
    } else {
      RemoveHold();
    }
  }
  void OnDone(const grpc::Status& status) override { relay_->AttemptEnded(status); }

 private:
  GenerateRelay* const relay_;
  v1::ExecuteResponse message_;
};

GenerateRelay::GenerateRelay(Upstreams* upstreams, RouterMetrics* metrics, const Clock* clock,
                             OpenCalls* open_calls, grpc::CallbackServerContext* context)
    : Relay(upstreams, context),
      metrics_(metrics),
      clock_(clock),
      open_calls_(open_calls),
      context_(context),
      arrival_ns_(clock->NowNs()) {
  metrics_->RequestBegan();
}

void GenerateRelay::Start(const grpc::ByteBuffer& request) {
  if (!open_calls_->Enter(this)) {
    End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is draining"));
    return;
  }
  const absl::Status parsed = ParseProto(request, request_.mutable_request());
  if (!parsed.ok()) {
    End(ToGrpc(parsed));
    return;
  }
  request_.set_internal_id(RandomId());
  request_.set_traceparent(ClientMetadata(*context_, "traceparent"));
  request_.set_tracestate(ClientMetadata(*context_, "tracestate"));
  StartRelay(request_.request().model());
}

std::unique_ptr<Attempt> GenerateRelay::NewAttempt(Lease lease) {
  return std::make_unique<Call>(this, std::move(lease));
}

void GenerateRelay::OnMessage(const v1::ExecuteResponse& message) {
  if (!message.has_response()) {
    call_->ReadNext();  // `resolved` is for resumption
    return;
  }
  if (!std::exchange(output_began_, true)) metrics_->FirstMessage(SecondsSinceArrival());
  write_ = SerializeProto(message.response());
  StartWrite(&write_);
}

void GenerateRelay::OnWriteDone(bool ok) {
  // The attempt is open: its hold is ours.
  if (ok) {
    call_->ReadNext();
    return;
  }
  ClientLeft();  // nobody is left to write to; OnCancel may come later than the end of the call
  call_->Abandon();
}

void GenerateRelay::Cut(const absl::Status& status) {
  Stop(ToGrpc(status));
}

void GenerateRelay::OnDone() {
  open_calls_->Leave(this);
  delete this;
}

void GenerateRelay::End(const grpc::Status& status) {
  metrics_->RequestEnded(status, SecondsSinceArrival());
  LogDebug("request {} ({}) ended: {} {}", request_.internal_id(), request_.request().request_id(),
           static_cast<int>(status.error_code()), status.error_message());
  // The worker's own advice; its trailers end here.
  if (const auto delay = RetryAfter(status); delay.has_value())
    mutable_client()->AddTrailingMetadata(kRetryTrailer, RetryTrailer(*delay));
  Finish(status);
}

double GenerateRelay::SecondsSinceArrival() const {
  return static_cast<double>(clock_->NowNs() - arrival_ns_) * 1e-9;
}

}  // namespace ridge::router
