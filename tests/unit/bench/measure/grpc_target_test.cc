#include "bench/measure/grpc_target.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "ridge/v1/worker.grpc.pb.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Writes a message every `gap`, with `tokens_per_message` tokens each, and notes when it began to write.
class TimedServer final : public v1::Inference::Service {
 public:
  explicit TimedServer(absl::Duration gap, int tokens_per_message = 1)
      : gap_(gap), per_message_(tokens_per_message) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  GrpcTargetConfig Config() const { return {.target = absl::StrCat("127.0.0.1:", port_), .connections = 2}; }
  int most_at_once() const { return most_at_once_.load(); }

  static grpc::Status CheckName(const std::string& model) {
    if (model.empty() || model == "timed") return grpc::Status::OK;
    return {grpc::StatusCode::NOT_FOUND, absl::StrCat("model: \"", model, "\" is not served")};
  }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override {
    if (grpc::Status status = CheckName(request->model()); !status.ok()) return status;
    response->set_name("timed");
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    if (grpc::Status status = CheckName(request->model()); !status.ok()) return status;
    if (request->max_tokens() > 1000) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "queue: full"};
    const int now = ++at_once_;
    most_at_once_ = std::max(most_at_once_.load(), now);
    const int64_t begin_ns = RealClock()->NowNs();
    int sent = 0;
    for (int message = 1; sent < request->max_tokens() && !context->IsCancelled(); ++message) {
      const int64_t at_ns = begin_ns + message * absl::ToInt64Nanoseconds(gap_);
      std::this_thread::sleep_for(std::chrono::nanoseconds(at_ns - RealClock()->NowNs() - 200'000));
      while (RealClock()->NowNs() < at_ns) {
      }
      v1::GenerateResponse response;
      v1::ChoiceTokens* choice = response.add_choices();
      for (int i = 0; i < per_message_ && sent < request->max_tokens(); ++i) {
        v1::Token* token = choice->add_tokens();
        token->set_id(100 + sent++);
        token->set_text("x");
      }
      if (sent == request->max_tokens()) {
        response.mutable_summary()->add_choices()->set_finish_reason(v1::FINISH_REASON_LENGTH);
        response.mutable_summary()->mutable_timings()->set_queue_us(250);
      }
      writer->Write(response);
    }
    --at_once_;
    return grpc::Status::OK;
  }

 private:
  const absl::Duration gap_;
  const int per_message_;
  int port_ = 0;
  std::atomic<int> at_once_{0}, most_at_once_{0};
  std::unique_ptr<grpc::Server> server_;
};

// Answers nobody before so many streams are open, and then all of them.
class PatientServer final : public v1::Inference::CallbackService {
 public:
  explicit PatientServer(size_t streams) : streams_(streams) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  GrpcTargetConfig Config() const { return {.target = absl::StrCat("127.0.0.1:", port_)}; }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest*) override {
    auto* stream = new OpenStream;
    std::vector<OpenStream*> complete;
    {
      absl::MutexLock lock(&mutex_);
      open_.push_back(stream);
      if (open_.size() == streams_) complete.swap(open_);
    }
    for (OpenStream* each : complete) each->Answer();
    return stream;
  }

 private:
  class OpenStream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
   public:
    void Answer() {
      response_.add_choices()->add_tokens()->set_id(7);
      response_.mutable_summary()->add_choices()->set_finish_reason(v1::FINISH_REASON_LENGTH);
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    v1::GenerateResponse response_;
  };

  const size_t streams_;
  int port_ = 0;
  absl::Mutex mutex_;
  std::vector<OpenStream*> open_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

std::vector<TargetRequest> Requests(const std::vector<double>& arrivals_s, int32_t max_tokens) {
  const auto ids = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{1, 2, 3});
  std::vector<TargetRequest> requests;
  for (double arrival_s : arrivals_s) {
    requests.push_back({.prompt_ids = ids, .max_tokens = max_tokens, .arrival_s = arrival_s});
  }
  return requests;
}

TEST(GrpcTargetTest, TimesTokensAsTheServerSentThem) {
  TimedServer server(absl::Milliseconds(10));
  GrpcTarget target(server.Config());
  ASSERT_EQ(target.GetModel()->name(), "timed");
  const std::vector<TargetResult> results = *target.Run(Requests({0}, 21), {});
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].end, "length");
  EXPECT_EQ(results[0].text, std::string(21, 'x'));
  EXPECT_NEAR(results[0].start_s - results[0].sent_s, 250e-6, 1e-9);
  ASSERT_THAT(results[0].token_s, SizeIs(21));
  // The median says what the instrument does; single gaps are the scheduler's on a busy machine.
  std::vector<double> errors;
  for (int i = 1; i < 21; ++i)
    errors.push_back(std::abs(results[0].token_s[i] - results[0].token_s[i - 1] - 0.010));
  std::nth_element(errors.begin(), errors.begin() + 10, errors.end());
  EXPECT_LT(errors[10], 0.0002);
}

// Says as a worker does how much it has to do.
class LoadServer final : public v1::Worker::Service {
 public:
  grpc::Status WatchLoad(grpc::ServerContext* context, const v1::WatchLoadRequest*,
                         grpc::ServerWriter<v1::LoadReport>* writer) override {
    writer->Write({});
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  }
};

TEST(GrpcTargetTest, KnowsAWorkerFromOtherServices) {
  TimedServer other(absl::Milliseconds(1));
  EXPECT_FALSE(GrpcTarget(other.Config()).IsWorker());
  EXPECT_FALSE(GrpcTarget({.target = "127.0.0.1:1"}).IsWorker());
  LoadServer loads;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&loads);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  EXPECT_TRUE(GrpcTarget({.target = absl::StrCat("127.0.0.1:", port)}).IsWorker());
}

TEST(GrpcTargetTest, AServiceThatIsNotThereIsSaidToBeUnavailableAtOnce) {
  GrpcTarget target({.target = "127.0.0.1:1"});
  const absl::Time begin = absl::Now();
  EXPECT_EQ(target.GetModel().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(3));
}

TEST(GrpcTargetTest, AsksForItsModelByName) {
  TimedServer server(absl::Milliseconds(1));
  GrpcTargetConfig config = server.Config();
  config.model = "another";
  GrpcTarget target(config);
  EXPECT_EQ(target.GetModel().status().message(), "model: \"another\" is not served");
  EXPECT_EQ(target.Run(Requests({0}, 1), {})->front().error, "model: \"another\" is not served");
}

TEST(GrpcTargetTest, TokensOfOneMessageShareItsTime) {
  TimedServer server(absl::Milliseconds(2), 4);
  GrpcTarget target(server.Config());
  const TargetResult result = target.Run(Requests({0}, 8), {})->front();
  EXPECT_THAT(result.ids, ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
  ASSERT_THAT(result.token_s, SizeIs(8));
  EXPECT_EQ(result.token_s[0], result.token_s[3]);
  EXPECT_GT(result.token_s[4], result.token_s[3] + 0.001);
  EXPECT_EQ(result.token_s[4], result.token_s[7]);
  EXPECT_EQ(result.shared_message_tokens, 6);
}

TEST(GrpcTargetTest, SendsAtTheScheduledTimesWhateverTheServerDoes) {
  TimedServer server(absl::Milliseconds(100));
  GrpcTarget target(server.Config());
  ASSERT_TRUE(target.GetModel().ok());
  const std::vector<double> arrivals_s = {0, 0.020, 0.021, 0.060};
  const std::vector<TargetResult> results = *target.Run(Requests(arrivals_s, 2), {});
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_GE(results[i].sent_s, arrivals_s[i]);
    EXPECT_LT(results[i].sent_s, arrivals_s[i] + 0.050);
  }
  EXPECT_EQ(server.most_at_once(), 4);
}

TEST(GrpcTargetTest, HoldsBackWhatIsMoreThanTheLimitInFlight) {
  TimedServer server(absl::Milliseconds(5));
  GrpcTarget target(server.Config());
  const std::vector<TargetResult> results = *target.Run(Requests({0, 0, 0, 0, 0}, 2), {.most_in_flight = 2});
  for (const TargetResult& result : results) EXPECT_EQ(result.end, "length");
  EXPECT_LE(server.most_at_once(), 2);
}

TEST(GrpcTargetTest, HoldsTwoThousandStreamsAtOnce) {
  PatientServer server(2000);
  GrpcTargetConfig config = server.Config();
  config.timeout = absl::Seconds(30);  // of which they need a fraction of a second
  GrpcTarget target(config);
  const std::vector<TargetResult> results = *target.Run(Requests(std::vector<double>(2000, 0.0), 1), {});
  for (const TargetResult& result : results) ASSERT_EQ(result.end, "length") << result.error;
}

TEST(GrpcTargetTest, StopsSendingWhereTheServerCannotKeepUp) {
  TimedServer server(absl::Milliseconds(300));
  GrpcTarget target(server.Config());
  const std::vector<TargetResult> results = *target.Run(Requests({0, 0, 0, 0, 0}, 1), {.stop_above = 2});
  EXPECT_EQ(results[2].end, "length");
  EXPECT_EQ(results[3].end, "unsent");
  EXPECT_EQ(results[4].end, "unsent");
  EXPECT_LT(results[4].sent_s, 0);
}

TEST(GrpcTargetTest, SaysHowARequestEnded) {
  TimedServer server(absl::Milliseconds(2));
  GrpcTarget target(server.Config());
  std::vector<TargetRequest> requests = Requests({0, 0}, 900);
  requests[0].cancel_after_tokens = 5;
  requests[1].max_tokens = 2000;
  const std::vector<TargetResult> results = *target.Run(requests, {});
  EXPECT_EQ(results[0].end, "cancelled");
  EXPECT_GE(results[0].ids.size(), 5);
  EXPECT_LT(results[0].ids.size(), 900);
  EXPECT_EQ(results[1].end, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(results[1].error, "queue: full");
  EXPECT_FALSE(results[1].served());
}

}  // namespace
}  // namespace ridge::bench
