#include "bench/measure/grpc_target.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/grpc_channel.h"
#include "common/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "ridge/v1/worker.grpc.pb.h"

namespace ridge::bench {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);  // where nothing answers, not even a refusal
// Sleeping wakes up late by about this much; what is left is spun.
constexpr int64_t kSpinNs = 100'000;

std::string FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_CONTEXT:
      return "context";
    default:
      return "unknown";
  }
}

v1::GenerateRequest ToProto(const TargetRequest& request, const std::string& model) {
  v1::GenerateRequest proto;
  proto.set_model(model);
  proto.mutable_prompt_ids()->mutable_ids()->Add(request.prompt_ids->begin(), request.prompt_ids->end());
  proto.set_max_tokens(request.max_tokens);
  proto.set_ignore_eos(true);
  proto.mutable_sampling()->set_temperature(request.temperature);
  proto.mutable_sampling()->set_seed(request.seed);
  return proto;
}

// Counts the streams that are open.
class InFlight {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }
  int32_t count() {
    absl::MutexLock lock(&mutex_);
    return count_;
  }
  void WaitBelow(int32_t limit) {
    const auto below = [this, limit]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ < limit; };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&below));
  }

 private:
  absl::Mutex mutex_;
  int32_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One request under way; lives until the run has ended.
class Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(const TargetRequest& request, const std::string& model, InFlight* in_flight, TargetResult* result)
      : proto_(ToProto(request, model)),
        cancel_after_tokens_(request.cancel_after_tokens),
        in_flight_(in_flight),
        result_(result) {
    result_->token_s.reserve(request.max_tokens);
    result_->ids.reserve(request.max_tokens);
  }

  void Start(int64_t begin_ns, absl::Duration timeout, v1::Inference::Stub* stub) {
    begin_ns_ = begin_ns;
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    in_flight_->Add();
    result_->sent_s = NowSeconds();
    stub->async()->Generate(&context_, &proto_, this);
    StartRead(&message_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    const double now_s = NowSeconds();
    for (const v1::ChoiceTokens& choice : message_.choices()) {
      result_->shared_message_tokens += std::max(0, choice.tokens_size() - 1);
      for (const v1::Token& token : choice.tokens()) {
        result_->token_s.push_back(now_s);
        result_->ids.push_back(token.id());
        result_->text += token.text();
      }
    }
    if (message_.has_summary()) TakeSummary(message_.summary());
    if (cancel_after_tokens_ > 0 && static_cast<int32_t>(result_->ids.size()) >= cancel_after_tokens_) {
      context_.TryCancel();
    }
    StartRead(&message_);
  }

  void OnDone(const grpc::Status& status) override {
    result_->end_s = NowSeconds();
    if (status.error_code() == grpc::StatusCode::CANCELLED && cancel_after_tokens_ > 0) {
      result_->end = "cancelled";
    } else if (!status.ok()) {
      const absl::Status error = FromGrpc(status);
      result_->end = absl::StatusCodeToString(error.code());
      result_->error = std::string(error.message());
    } else if (result_->end.empty()) {
      result_->end = absl::StatusCodeToString(absl::StatusCode::kInternal);
      result_->error = "the stream ended without a summary";
    }
    in_flight_->Remove();
  }

 private:
  double NowSeconds() const { return static_cast<double>(RealClock()->NowNs() - begin_ns_) * 1e-9; }

  void TakeSummary(const v1::Summary& summary) {
    result_->end = summary.choices_size() > 0 ? FinishName(summary.choices(0).finish_reason()) : "unknown";
    result_->start_s = result_->sent_s + static_cast<double>(summary.timings().queue_us()) * 1e-6;
    result_->cached_tokens = summary.usage().cached_tokens();
  }

  const v1::GenerateRequest proto_;
  const int32_t cancel_after_tokens_;
  int64_t begin_ns_ = 0;
  InFlight* const in_flight_;
  TargetResult* const result_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
};

void WaitUntil(int64_t time_ns) {
  const int64_t sleep_ns = time_ns - RealClock()->NowNs() - kSpinNs;
  if (sleep_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(sleep_ns));
  while (RealClock()->NowNs() < time_ns) {
  }
}

}  // namespace

GrpcTarget::GrpcTarget(const GrpcTargetConfig& config) : config_(config) {
  for (int i = 0; i < config.connections; ++i) {
    grpc::ChannelArguments arguments = DirectChannelArguments();
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // otherwise all would share one connection
    channels_.push_back(
        grpc::CreateCustomChannel(config.target, grpc::InsecureChannelCredentials(), arguments));
    stubs_.push_back(v1::Inference::NewStub(channels_.back()));
  }
}

GrpcTarget::~GrpcTarget() = default;

absl::StatusOr<v1::GetModelResponse> GrpcTarget::GetModel() {
  v1::GetModelRequest request;
  request.set_model(config_.model);
  v1::GetModelResponse model;
  for (const auto& stub : stubs_) {  // so that no request waits for its connection
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kConnectTimeout));
    if (const grpc::Status status = stub->GetModel(&context, request, &model); !status.ok())
      return FromGrpc(status);
  }
  return model;
}

bool GrpcTarget::IsWorker() {
  // What routers ask their workers.
  const auto worker = v1::Worker::NewStub(channels_.front());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kConnectTimeout));
  const auto reports = worker->WatchLoad(&context, {});
  v1::LoadReport report;
  const bool answers = reports->Read(&report);
  context.TryCancel();
  reports->Finish();
  return answers;
}

absl::StatusOr<Encoded> GrpcTarget::Encode(absl::string_view text) {
  v1::TokenizeRequest request;
  request.set_model(config_.model);
  request.set_prompt(std::string(text));
  request.set_add_special_tokens(false);
  request.set_parse_special_tokens(false);
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + config_.timeout));
  const grpc::Status status = stubs_.front()->Tokenize(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  Encoded encoded{{response.ids().begin(), response.ids().end()}, {}};
  for (const std::string& piece : response.pieces())
    encoded.sizes.push_back(static_cast<int32_t>(piece.size()));
  return encoded;
}

absl::StatusOr<std::vector<TargetResult>> GrpcTarget::Run(absl::Span<const TargetRequest> requests,
                                                          const RunLimits& limits) {
  std::vector<TargetResult> results(requests.size());
  InFlight in_flight;
  // Made before their time: writing a request's message is not part of what is measured.
  std::vector<std::unique_ptr<Stream>> streams;
  streams.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    results[i].end = "unsent";
    streams.push_back(std::make_unique<Stream>(requests[i], config_.model, &in_flight, &results[i]));
  }
  const int64_t begin_ns = RealClock()->NowNs();
  for (size_t i = 0; i < requests.size(); ++i) {
    WaitUntil(begin_ns + static_cast<int64_t>(requests[i].arrival_s * 1e9));
    if (limits.most_in_flight > 0) in_flight.WaitBelow(limits.most_in_flight);
    if (limits.stop_above > 0 && in_flight.count() > limits.stop_above) break;
    results[i].end.clear();
    streams[i]->Start(begin_ns, config_.timeout, stubs_[i % stubs_.size()].get());
  }
  in_flight.WaitBelow(1);
  return results;
}

}  // namespace ridge::bench
