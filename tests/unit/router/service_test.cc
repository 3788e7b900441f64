#include "router/service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/grpc_server.h"
#include "common/proto_parse.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/unit/router/fake_worker.h"

namespace ridge::router {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(10);

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time limit = absl::Now() + kPatience;
  while (!condition() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(2));
  return condition();
}

// What a client got.
struct Outcome {
  std::vector<v1::GenerateResponse> messages;
  grpc::Status status;
};

Outcome ReadAll(grpc::ClientReader<v1::GenerateResponse>* reader) {
  Outcome outcome;
  v1::GenerateResponse message;
  while (reader->Read(&message)) outcome.messages.push_back(message);
  outcome.status = reader->Finish();
  return outcome;
}

// The service on a port, in front of fake workers.
class ServiceTest : public ::testing::Test {
 protected:
  FakeWorker* AddWorker(FakeWorker::OnExecute on_execute) {
    workers_.push_back(std::make_unique<FakeWorker>(std::move(on_execute)));
    return workers_.back().get();
  }

  // With all workers added; waits until they are up.
  void StartRouter(const UpstreamOptions& options = {}) {
    std::vector<std::string> addresses;
    for (const auto& worker : workers_) addresses.push_back(worker->address());
    upstreams_ = std::make_unique<Upstreams>(addresses, options, RealClock(), &metrics_,
                                             [this](bool ready) { ready_ = ready; });
    service_ = std::make_unique<InferenceService>(upstreams_.get(), &metrics_, RealClock(), &open_calls_);
    server_ = *GrpcServer::Start(GrpcServerOptions(), {service_.get()});
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
    ASSERT_TRUE(Eventually([this] {
      return std::all_of(workers_.begin(), workers_.end(), [this](const auto& w) { return Up(*w); });
    }));
  }

  ~ServiceTest() override {
    if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
  }

  Outcome Generate(const v1::GenerateRequest& request = {}) {
    grpc::ClientContext context;
    return ReadAll(stub_->Generate(&context, request).get());
  }

  bool Up(const FakeWorker& worker) { return metrics_.WorkerUp(worker.address()).Value() == 1; }
  double Requests(const std::string& code) {
    return registry_.Counter("ridge_router_requests_total", "", {{"code", code}}).Value();
  }
  double InFlight() { return registry_.Gauge("ridge_router_requests_in_flight", "").Value(); }

  MetricsRegistry registry_;
  RouterMetrics metrics_{&registry_};
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::atomic<bool> ready_ = false;
  OpenCalls open_calls_;
  std::unique_ptr<Upstreams> upstreams_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(ServiceTest, RelaysResponsesInOrderAndKeepsTheResolvedRequestToItself) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    v1::ExecuteResponse resolved;
    resolved.mutable_resolved()->set_numerics_id("abc");
    writer->Write(resolved);
    WriteTokens(writer, 100);
    v1::ExecuteResponse last;
    last.mutable_response()->mutable_summary()->set_seed(7);
    writer->Write(last);
    return grpc::Status::OK;
  });
  StartRouter();

  const Outcome outcome = Generate();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.messages.size(), 101u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(MessageDifferencer::Equals(outcome.messages[i], TokenMessage(i).response())) << i;
  }
  EXPECT_EQ(outcome.messages.back().summary().seed(), 7u);

  EXPECT_EQ(Requests("OK"), 1);
  EXPECT_EQ(InFlight(), 0);
  EXPECT_EQ(metrics_.WorkerRequests(workers_[0]->address()).Value(), 1);
  EXPECT_THAT(registry_.Text(), HasSubstr("ridge_router_time_to_first_token_seconds_count 1"));
  EXPECT_THAT(registry_.Text(), HasSubstr("ridge_router_request_duration_seconds_count 1"));
}

TEST_F(ServiceTest, PassesTheRequestAndItsTraceContextOn) {
  v1::ExecuteRequest seen;
  AddWorker([&seen](grpc::ServerContext*, const v1::ExecuteRequest& request, ExecuteWriter*) {
    seen = request;
    return grpc::Status::OK;
  });
  StartRouter();

  v1::GenerateRequest request;
  request.set_model("tiny");
  request.set_prompt("caf\u00e9");
  request.mutable_sampling()->set_temperature(0);
  request.set_request_id("mine");
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  context.AddMetadata("tracestate", "vendor=1");
  EXPECT_TRUE(ReadAll(stub_->Generate(&context, request).get()).status.ok());

  EXPECT_TRUE(MessageDifferencer::Equals(seen.request(), request));
  EXPECT_EQ(seen.internal_id().size(), 32u);
  EXPECT_EQ(seen.traceparent(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  EXPECT_EQ(seen.tracestate(), "vendor=1");
}

TEST_F(ServiceTest, InternalIdsAreUnique) {
  std::set<std::string> ids;
  AddWorker([&ids](grpc::ServerContext*, const v1::ExecuteRequest& request, ExecuteWriter*) {
    ids.insert(request.internal_id());
    return grpc::Status::OK;
  });
  StartRouter();
  for (int i = 0; i < 10; ++i) Generate();
  EXPECT_EQ(ids.size(), 10u);
}

TEST_F(ServiceTest, CancellationReachesTheWorker) {
  std::atomic<bool> cancelled = false;
  AddWorker([&cancelled](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    WriteTokens(writer, 1);
    cancelled = WaitForCancellation(context);
    return grpc::Status::CANCELLED;
  });
  StartRouter();

  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, v1::GenerateRequest());
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(InFlight(), 1);
  context.TryCancel();
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return cancelled.load(); }));
  EXPECT_TRUE(Eventually([&] { return Requests("CANCELLED") == 1; }));
  EXPECT_EQ(InFlight(), 0);
}

TEST_F(ServiceTest, TheDeadlineReachesTheWorker) {
  std::atomic<int64_t> deadline_ms = 0;
  std::atomic<bool> cancelled = false;
  AddWorker([&](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    deadline_ms = absl::ToUnixMillis(absl::FromChrono(context->deadline()));
    WriteTokens(writer, 1);
    cancelled = WaitForCancellation(context);
    return grpc::Status::CANCELLED;
  });
  StartRouter();

  grpc::ClientContext context;
  const absl::Time deadline = absl::Now() + absl::Milliseconds(300);
  context.set_deadline(absl::ToChronoTime(deadline));
  const Outcome outcome = ReadAll(stub_->Generate(&context, v1::GenerateRequest()).get());
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(outcome.messages.size(), 1u);
  EXPECT_TRUE(Eventually([&] { return cancelled.load(); }));
  EXPECT_NEAR(deadline_ms.load(), absl::ToUnixMillis(deadline), 50);
  EXPECT_TRUE(Eventually([&] { return Requests("DEADLINE_EXCEEDED") == 1; }));
  EXPECT_EQ(InFlight(), 0);
}

TEST_F(ServiceTest, WithoutADeadlineTheWorkerHasNoneEither) {
  std::atomic<bool> infinite = false;
  AddWorker([&](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter*) {
    infinite = context->deadline() == std::chrono::system_clock::time_point::max();
    return grpc::Status::OK;
  });
  StartRouter();
  EXPECT_TRUE(Generate().status.ok());
  EXPECT_TRUE(infinite);
}

TEST_F(ServiceTest, TheWorkersAnswerIsTheClients) {
  for (int i = 0; i < 2; ++i) {
    AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "max_tokens: -1 is negative");
    });
  }
  StartRouter();
  const grpc::Status status = Generate().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "max_tokens: -1 is negative");
  EXPECT_EQ(workers_[0]->executed() + workers_[1]->executed(), 1);
  EXPECT_EQ(Requests("INVALID_ARGUMENT"), 1);
}

TEST_F(ServiceTest, TextThatIsNotUtf8IsRefusedByItsField) {
  FakeWorker* worker = AddWorker(
      [](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  StartRouter();

  // Field 2, `prompt`, of three bytes.
  const grpc::Slice bytes(
      std::string("\x12\x03"
                  "a\xff"
                  "b"));
  const grpc::ByteBuffer request(&bytes, 1);
  for (const char* method : {"/ridge.v1.Inference/Generate", "/ridge.v1.Inference/Tokenize"}) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response, [&](grpc::Status result) {
      status = result;
      done.Notify();
    });
    done.WaitForNotification();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("prompt: not valid UTF-8")) << method;
  }
  EXPECT_EQ(worker->executed() + worker->unary_calls(), 0);
  EXPECT_EQ(Requests("INVALID_ARGUMENT"), 1);
}

TEST_F(ServiceTest, WithoutAWorkerTheCallIsUnavailable) {
  StartRouter();
  const grpc::Status status = Generate().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "no worker is ready");
}

TEST_F(ServiceTest, AnUnknownModelIsNotFound) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  StartRouter();
  v1::GenerateRequest request;
  request.set_model("huge");
  const grpc::Status status = Generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "model: \"huge\" is not served here; there is \"tiny\"");
  EXPECT_EQ(workers_[0]->executed(), 0);
}

// Execute for a set of workers: the first `failures` calls, wherever they land, are lost.
FakeWorker::OnExecute LoseFirst(int failures, std::atomic<int>* calls) {
  return [failures, calls](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    v1::ExecuteResponse resolved;
    resolved.mutable_resolved();
    writer->Write(resolved);
    if (calls->fetch_add(1) < failures) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
    return WriteTokens(writer, 3);
  };
}

TEST_F(ServiceTest, AWorkerLostBeforeOutputIsReplacedUnseen) {
  std::atomic<int> calls = 0;
  for (int i = 0; i < 3; ++i) AddWorker(LoseFirst(2, &calls));
  StartRouter();
  const Outcome outcome = Generate();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.messages.size(), 3u);
  for (const auto& worker : workers_) EXPECT_EQ(worker->executed(), 1);
}

TEST_F(ServiceTest, GivesUpAfterThreeWorkers) {
  std::atomic<int> calls = 0;
  for (int i = 0; i < 4; ++i) AddWorker(LoseFirst(100, &calls));
  StartRouter();
  const grpc::Status status = Generate().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("draining"));
  EXPECT_EQ(calls.load(), 3);
  EXPECT_EQ(InFlight(), 0);
}

TEST_F(ServiceTest, ALostWorkerIsNotTriedTwice) {
  std::atomic<int> calls = 0;
  AddWorker(LoseFirst(1, &calls));
  StartRouter();
  EXPECT_EQ(Generate().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(calls.load(), 1);
}

grpc::Status QueueFull(int seconds) {
  return ToGrpc(Overloaded("QUEUE_FULL", "the queue is full", absl::Seconds(seconds)));
}

v1::LoadReport ReportOf(int queue_room, int64_t kv_tokens = 0) {
  v1::LoadReport report;
  report.set_accepting(true);
  report.set_model("tiny");
  report.set_queue_room(queue_room);
  report.set_kv_capacity_tokens(kv_tokens);
  return report;
}

FakeWorker::OnExecute Refuse(const grpc::Status& status) {
  return [status](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return status; };
}

FakeWorker::OnExecute Answer() {
  return [](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    return WriteTokens(writer, 3);
  };
}

TEST_F(ServiceTest, AFullWorkerIsReplacedByOneWithRoom) {
  AddWorker(Refuse(QueueFull(7)))->Report(ReportOf(1));
  AddWorker(Answer())->Report(ReportOf(1));
  StartRouter();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Generate().messages.size(), 3u);
  EXPECT_EQ(workers_[1]->executed(), 4);
  EXPECT_GT(workers_[0]->executed(), 0);
  EXPECT_EQ(Requests("OK"), 4);
}

TEST_F(ServiceTest, WhereNoOtherHasRoomTheLastRefusalAndItsAdviceArePassedOn) {
  AddWorker(Refuse(QueueFull(7)))->Report(ReportOf(1));
  AddWorker(Refuse(QueueFull(7)))->Report(ReportOf(1));
  AddWorker(Answer())->Report(ReportOf(0));  // idle, and takes nobody as it says
  v1::LoadReport busy = ReportOf(0);
  busy.set_running_requests(9);
  workers_[2]->Report(busy);
  StartRouter();
  grpc::ClientContext context;
  const Outcome outcome = ReadAll(stub_->Generate(&context, v1::GenerateRequest()).get());
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(RetryAfter(outcome.status), absl::Seconds(7));
  const auto pushback = context.GetServerTrailingMetadata().find(kRetryTrailer);
  ASSERT_NE(pushback, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "7000");
  EXPECT_EQ(workers_[0]->executed() + workers_[1]->executed(), 2);
  EXPECT_EQ(workers_[2]->executed(), 0);
}

TEST_F(ServiceTest, ARequestThatNeverFitsGoesToAWorkerWithMoreMemoryOnly) {
  const grpc::Status too_small = ToGrpc(TooLarge("KV_CACHE_TOO_SMALL", "needs KV memory for 5000 tokens"));
  AddWorker(Refuse(too_small))->Report(ReportOf(1, 4000));
  AddWorker(Refuse(too_small))->Report(ReportOf(1, 4000));
  StartRouter();
  EXPECT_EQ(Generate().status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(workers_[0]->executed() + workers_[1]->executed(), 1);
}

TEST_F(ServiceTest, ARequestThatDoesNotFitOneWorkerRunsOnALargerOne) {
  const grpc::Status too_small = ToGrpc(TooLarge("KV_CACHE_TOO_SMALL", "needs KV memory for 5000 tokens"));
  AddWorker(Refuse(too_small))->Report(ReportOf(1, 4000));
  AddWorker(Answer())->Report(ReportOf(1, 8000));
  StartRouter();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Generate().messages.size(), 3u);
}

TEST_F(ServiceTest, AWorkerThatRunsOutAfterOutputEndsTheCall) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    WriteTokens(writer, 1);
    return QueueFull(7);
  })->Report(ReportOf(1));
  AddWorker(Answer())->Report(ReportOf(1));
  v1::LoadReport busy = ReportOf(1);
  busy.set_running_requests(9);
  workers_[1]->Report(busy);
  StartRouter();
  const Outcome outcome = Generate();
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(outcome.messages.size(), 1u);
  EXPECT_EQ(workers_[1]->executed(), 0);
}

// As gRPC itself says of a message that is too long.
TEST_F(ServiceTest, AnExhaustionThatIsNoRefusalIsNotTriedElsewhere) {
  for (int i = 0; i < 2; ++i) {
    AddWorker(Refuse(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "message larger than max")))
        ->Report(ReportOf(1, i == 0 ? 4000 : 8000));
  }
  StartRouter();
  const Outcome outcome = Generate();
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(outcome.status.error_message(), "message larger than max");
  EXPECT_EQ(workers_[0]->executed() + workers_[1]->executed(), 1);
}

// As gRPC itself says of a stream whose connection ended by a limit.
TEST_F(ServiceTest, AnExhaustionInTheMiddleOfAStreamIsTheLossOfTheWorker) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    WriteTokens(writer, 1);
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "metadata size exceeds limit");
  });
  StartRouter();
  const Outcome outcome = Generate();
  EXPECT_EQ(outcome.messages.size(), 1u);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(outcome.status.error_message(),
            absl::StrCat("worker ", workers_[0]->address(), ": metadata size exceeds limit"));
}

TEST_F(ServiceTest, ALongErrorOfAWorkerEndsOneCallAlone) {
  absl::Notification finish;
  AddWorker([&finish](grpc::ServerContext*, const v1::ExecuteRequest& request, ExecuteWriter* writer) {
    if (request.request().request_id() == "bad")
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(100000, 'r'));
    WriteTokens(writer, 1);
    finish.WaitForNotification();
    return WriteTokens(writer, 2);
  });
  StartRouter();
  grpc::ClientContext context;
  const auto running = stub_->Generate(&context, v1::GenerateRequest());
  v1::GenerateResponse message;
  ASSERT_TRUE(running->Read(&message));
  v1::GenerateRequest bad;
  bad.set_request_id("bad");
  const grpc::Status status = Generate(bad).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), std::string(kMaxMessageBytes - 3, 'r') + "...");
  workers_[0]->FailUnaryCalls(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(100000, '%')));
  grpc::ClientContext unary;
  v1::TokenizeResponse tokens;
  EXPECT_EQ(stub_->Tokenize(&unary, v1::TokenizeRequest(), &tokens).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Up(*workers_[0]));
  finish.Notify();
  EXPECT_EQ(ReadAll(running.get()).messages.size(), 2u);
}

TEST_F(ServiceTest, AWorkerLostAfterOutputEndsTheCall) {
  std::atomic<int> calls = 0;
  for (int i = 0; i < 2; ++i) {
    AddWorker([&calls](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
      ++calls;
      WriteTokens(writer, 2);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
    });
  }
  StartRouter();
  const Outcome outcome = Generate();
  EXPECT_EQ(outcome.messages.size(), 2u);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("gone"));
  EXPECT_EQ(calls.load(), 1);
}

TEST_F(ServiceTest, AWorkerThatIsStoppedEndsItsStreamsAsUnavailable) {
  AddWorker([](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    WriteTokens(writer, 1);
    WaitForCancellation(context);
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, v1::GenerateRequest());
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  workers_[0]->Stop();
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Eventually([this] { return !Up(*workers_[0]); }));
  EXPECT_FALSE(ready_);
}

TEST_F(ServiceTest, AWorkerThatComesBackIsUsedAgain) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    return WriteTokens(writer, 1);
  });
  StartRouter();
  workers_[0]->Stop();
  ASSERT_TRUE(Eventually([this] { return !Up(*workers_[0]); }));
  EXPECT_EQ(Generate().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  workers_[0]->Restart();
  ASSERT_TRUE(Eventually([this] { return Up(*workers_[0]); }));
  EXPECT_TRUE(Generate().status.ok());
}

TEST_F(ServiceTest, AWorkerThatFallsSilentIsDown) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  UpstreamOptions options;
  options.report_timeout = absl::Milliseconds(500);
  StartRouter(options);
  workers_[0]->FallSilent();
  ASSERT_TRUE(Eventually([this] { return !Up(*workers_[0]); }));
  EXPECT_EQ(Generate().status.error_message(), "no worker is ready");
}

// Like a process that was stopped: its connections are there, and nothing comes.
TEST_F(ServiceTest, AWorkerThatFreezesLosesItsCalls) {
  std::atomic<int> calls = 0;
  const auto freeze = [&calls](grpc::ServerContext* context, const v1::ExecuteRequest&,
                               ExecuteWriter* writer) {
    if (calls++ > 0) return WriteTokens(writer, 3);
    WaitForCancellation(context);
    return grpc::Status::CANCELLED;
  };
  for (int i = 0; i < 2; ++i) AddWorker(freeze);
  UpstreamOptions options;
  options.report_timeout = absl::Milliseconds(800);
  StartRouter(options);
  Outcome outcome;
  std::thread client([&] { outcome = Generate(); });
  ASSERT_TRUE(Eventually([&] { return calls == 1; }));
  for (const auto& worker : workers_) {
    if (worker->executed() == 1) worker->FallSilent();
  }
  client.join();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.messages.size(), 3u);
  EXPECT_EQ(calls, 2);
}

TEST_F(ServiceTest, AStreamOfAWorkerThatFreezesSaysWhy) {
  AddWorker([](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    WriteTokens(writer, 1);
    WaitForCancellation(context);
    return grpc::Status::CANCELLED;
  });
  UpstreamOptions options;
  options.report_timeout = absl::Milliseconds(800);
  StartRouter(options);
  std::thread freeze([&] {
    Eventually([&] { return workers_[0]->executed() == 1; });
    workers_[0]->FallSilent();
  });
  const grpc::Status status = Generate().status;
  freeze.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), absl::StrCat("worker ", workers_[0]->address(), ": silent for 800ms"));
}

// What its streams bring is a sign of life.
TEST_F(ServiceTest, AWorkerThatOnlyStreamsIsNotSilent) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    for (int i = 0; i < 30; ++i) {
      writer->Write(TokenMessage(i));
      absl::SleepFor(absl::Milliseconds(50));
    }
    return grpc::Status::OK;
  });
  UpstreamOptions options;
  options.report_timeout = absl::Milliseconds(700);
  StartRouter(options);
  workers_[0]->FallSilent();
  const Outcome outcome = Generate();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.messages.size(), 30u);
}

TEST_F(ServiceTest, AWorkerThatDiffersFromTheOthersGetsNoCalls) {
  for (int i = 0; i < 3; ++i) {
    AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
      return WriteTokens(writer, 1);
    });
  }
  v1::LoadReport report;
  report.set_accepting(true);
  report.set_model("tiny");
  report.set_context_length(8192);
  workers_[1]->Report(report);
  workers_[2]->Report(report);
  report.set_context_length(352);
  workers_[0]->Report(report);
  StartRouter();
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(Generate().status.ok());
  EXPECT_EQ(workers_[0]->executed(), 0);
  EXPECT_EQ(workers_[1]->executed(), 3);
  EXPECT_THAT(upstreams_->Describe(),
              HasSubstr(absl::StrCat(workers_[0]->address(), " in_flight=0 up accepting differing")));
}

TEST_F(ServiceTest, WhyAWorkerIsDownIsToBeSeen) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  StartRouter();
  // This router serves no ridge.v1.Worker, and port 1 is nobody's.
  const std::string itself = absl::StrCat("127.0.0.1:", server_->port());
  Upstreams others({itself, "127.0.0.1:1"}, {}, RealClock(), &metrics_, [](bool) {});
  EXPECT_TRUE(Eventually([&] {
    const std::string text = others.Describe();
    return absl::StrContains(text, absl::StrCat(itself, " in_flight=0 down: it is no ridge-worker")) &&
           absl::StrContains(text, "127.0.0.1:1 in_flight=0 down: ") && absl::StrContains(text, "refused");
  })) << others.Describe();
}

TEST_F(ServiceTest, AClientThatLeavesAtItsDeadlineCountsAsThat) {
  AddWorker([](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    WriteTokens(writer, 1);
    WaitForCancellation(context);
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  const auto reader = stub_->Generate(&context, v1::GenerateRequest());
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  absl::SleepFor(absl::Milliseconds(870));  // its clock runs ahead of the server's
  context.TryCancel();
  reader->Finish();
  EXPECT_TRUE(Eventually([&] { return Requests("DEADLINE_EXCEEDED") == 1; }));
  EXPECT_EQ(Requests("CANCELLED"), 0);
}

TEST_F(ServiceTest, AWorkerThatStopsAcceptingGetsNoMoreCalls) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  StartRouter();
  v1::LoadReport draining;
  draining.set_accepting(false);
  draining.set_model("tiny");
  workers_[0]->Report(draining);
  ASSERT_TRUE(Eventually([this] { return !ready_.load(); }));
  EXPECT_EQ(Generate().status.error_message(), "no worker is ready");
  EXPECT_EQ(workers_[0]->executed(), 0);
}

TEST_F(ServiceTest, TheBusyWorkerIsSpared) {
  for (int i = 0; i < 2; ++i) {
    AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
      return WriteTokens(writer, 1);
    });
  }
  v1::LoadReport busy;
  busy.set_accepting(true);
  busy.set_running_requests(2);
  busy.set_queued_requests(1);
  workers_[0]->Report(busy);
  StartRouter();
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(Generate().status.ok());
  EXPECT_EQ(workers_[0]->executed(), 0);
  EXPECT_EQ(workers_[1]->executed(), 6);
}

TEST_F(ServiceTest, OpenStreamsCountAtOnce) {
  // The workers' reports stay idle, so that only the router's own counts can spread the calls.
  for (int i = 0; i < 3; ++i) {
    AddWorker([](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
      WriteTokens(writer, 1);
      WaitForCancellation(context);
      return grpc::Status::CANCELLED;
    });
  }
  StartRouter();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (int i = 0; i < 6; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub_->Generate(contexts.back().get(), v1::GenerateRequest()));
    v1::GenerateResponse message;
    ASSERT_TRUE(readers.back()->Read(&message));
  }
  EXPECT_EQ(InFlight(), 6);
  for (const auto& worker : workers_) EXPECT_EQ(worker->executed(), 2);
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& reader : readers) ReadAll(reader.get());
  EXPECT_TRUE(Eventually([this] { return InFlight() == 0; }));
}

TEST_F(ServiceTest, ASlowClientHoldsItsWorkerBack) {
  constexpr int kMessages = 400;
  constexpr size_t kMessageBytes = size_t{128} << 10;
  std::atomic<int> written = 0;
  AddWorker([&written](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    for (int i = 0; i < kMessages; ++i) {
      v1::ExecuteResponse message = TokenMessage(i);
      message.mutable_response()->mutable_choices(0)->mutable_tokens(0)->set_bytes(
          std::string(kMessageBytes, 'x'));
      if (!writer->Write(message)) break;
      ++written;
    }
    return grpc::Status::OK;
  });
  StartRouter();

  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, v1::GenerateRequest());
  // Wait until the windows of both connections are full.
  int before = -1;
  while (before != written) {
    before = written;
    absl::SleepFor(absl::Milliseconds(200));
  }
  EXPECT_LT(written.load(), kMessages / 2);
  const Outcome outcome = ReadAll(reader.get());
  EXPECT_TRUE(outcome.status.ok());
  ASSERT_EQ(outcome.messages.size(), size_t{kMessages});
  EXPECT_EQ(outcome.messages.back().choices(0).tokens(0).ordinal(), kMessages - 1);
}

TEST_F(ServiceTest, ManyCallsThatAreCancelledLeaveNothingBehind) {
  AddWorker([](grpc::ServerContext* context, const v1::ExecuteRequest&, ExecuteWriter* writer) {
    for (int i = 0; i < 1000 && !context->IsCancelled(); ++i) writer->Write(TokenMessage(i));
    return grpc::Status::OK;
  });
  StartRouter();
  constexpr int kThreads = 4;
  constexpr int kCallsEach = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kCallsEach; ++i) {
        grpc::ClientContext context;
        const auto reader = stub_->Generate(&context, v1::GenerateRequest());
        v1::GenerateResponse message;
        // At every stage: before the first message, and after a few.
        for (int read = 0; read < (t + i) % 4; ++read) reader->Read(&message);
        context.TryCancel();
        ReadAll(reader.get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([this] { return InFlight() == 0; }));
  EXPECT_TRUE(Eventually([this] { return upstreams_->Describe().find("in_flight=0") != std::string::npos; }));
}

TEST_F(ServiceTest, UnaryCallsAreRelayed) {
  AddWorker([](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  StartRouter();
  {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_prompt("AB");
    v1::TokenizeResponse response;
    EXPECT_TRUE(stub_->Tokenize(&context, request, &response).ok());
    EXPECT_THAT(response.ids(), testing::ElementsAre('A', 'B'));
  }
  {
    grpc::ClientContext context;
    v1::GetModelResponse response;
    EXPECT_TRUE(stub_->GetModel(&context, v1::GetModelRequest(), &response).ok());
    EXPECT_EQ(response.name(), "tiny");
  }
  {
    grpc::ClientContext context;
    v1::GetModelRequest request;
    request.set_model("huge");
    v1::GetModelResponse response;
    EXPECT_EQ(stub_->GetModel(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  {
    // The fake does not implement it: the worker's own answer comes through.
    grpc::ClientContext context;
    v1::DetokenizeResponse response;
    EXPECT_EQ(stub_->Detokenize(&context, v1::DetokenizeRequest(), &response).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
}

TEST_F(ServiceTest, AUnaryCallMovesOnFromALostWorker) {
  for (int i = 0; i < 2; ++i) {
    AddWorker(
        [](grpc::ServerContext*, const v1::ExecuteRequest&, ExecuteWriter*) { return grpc::Status::OK; });
  }
  StartRouter();
  workers_[0]->FailUnaryCalls(grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining"));
  for (int i = 0; i < 4; ++i) {
    grpc::ClientContext context;
    v1::GetModelResponse response;
    EXPECT_TRUE(stub_->GetModel(&context, v1::GetModelRequest(), &response).ok());
  }
  EXPECT_EQ(workers_[1]->unary_calls(), 4);
  EXPECT_GT(workers_[0]->unary_calls(), 0);
}

}  // namespace
}  // namespace ridge::router
