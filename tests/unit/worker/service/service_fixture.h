// Both services over a real channel, with a small model and a backend whose steps the test can hold.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/grpc_server.h"
#include "common/metrics.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"
#include "tests/unit/worker/service/small_model.h"
#include "worker/loop/engine.h"
#include "worker/loop/engine_metrics.h"
#include "worker/service/inference_service.h"
#include "worker/service/worker_service.h"

namespace ridge::worker {

// Gives as many steps as it is allowed to.
class HeldBackend : public FakeBackend {
 public:
  absl::StatusOr<StepResult> Collect(StepTicket ticket) override {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &HeldBackend::MayGive));
      --steps_;
    }
    return FakeBackend::Collect(ticket);
  }

  void Allow(int64_t count) {
    absl::MutexLock lock(&mutex_);
    steps_ = count;
  }

 private:
  bool MayGive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return steps_ > 0; }

  absl::Mutex mutex_;
  int64_t steps_ ABSL_GUARDED_BY(mutex_) = INT64_MAX;
};

class ServiceTest : public ::testing::Test {
 protected:
  static constexpr int32_t kNumBlocks = 4096;

  ServiceTest()
      : ServiceTest({.num_blocks = kNumBlocks, .max_running = 8, .step_tokens = 64, .chunk_tokens = 64}) {}

  explicit ServiceTest(const EngineConfig& config) {
    EXPECT_TRUE(backend_.Reserve(config.num_blocks, {config.max_running, config.step_tokens}).ok());
    engine_ = std::make_unique<Engine>(config, &backend_, RealClock(), &metrics_);
    const CallEnvironment environment{&model_, engine_.get(), &tasks_, RealClock(), &open_calls_};
    inference_service_ = std::make_unique<InferenceService>(environment);
    worker_service_ = std::make_unique<WorkerService>(
        environment, [this] { return Report(); }, [this] { engine_->Drain(); });
    server_ = GrpcServer::Start({}, {inference_service_.get(), worker_service_.get()}).value();
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
    inference_ = v1::Inference::NewStub(channel_);
    worker_ = v1::Worker::NewStub(channel_);
  }

  ~ServiceTest() override {
    backend_.Allow(INT64_MAX);
    worker_service_->Close();
    server_.reset();
    engine_.reset();
  }

  v1::LoadReport Report() const {
    const EngineLoad load = engine_->Load();
    v1::LoadReport report;
    report.set_running_requests(load.running);
    report.set_queued_requests(load.queued);
    report.set_accepting(!load.draining);
    report.set_kv_free_tokens(load.free_blocks * kBlockTokens);
    return report;
  }

  // What a whole stream gave.
  struct Streamed {
    std::vector<TokenId> ids;
    std::string text;
    v1::Summary summary;
    int messages = 0;
    grpc::Status status;
  };

  void Take(const v1::GenerateResponse& message, Streamed* streamed) const {
    EXPECT_EQ(message.sequence_number(), static_cast<uint64_t>(streamed->messages++));
    EXPECT_FALSE(streamed->summary.has_usage()) << "a message after the summary";
    for (const v1::ChoiceTokens& choice : message.choices()) {
      for (const v1::Token& token : choice.tokens()) {
        EXPECT_EQ(token.ordinal(), static_cast<int32_t>(streamed->ids.size()));
        streamed->ids.push_back(token.id());
        streamed->text += token.text();
      }
    }
    if (message.has_summary()) streamed->summary = message.summary();
  }

  Streamed Generate(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    const auto reader = inference_->Generate(&context, request);
    Streamed streamed;
    for (v1::GenerateResponse message; reader->Read(&message);) Take(message, &streamed);
    streamed.status = reader->Finish();
    return streamed;
  }
  Streamed Generate(const std::string& text) { return Generate(FromText<v1::GenerateRequest>(text)); }

  // Nothing runs, waits or holds memory.
  bool Idle() const {
    const EngineLoad load = engine_->Load();
    return load.running == 0 && load.queued == 0 && load.free_blocks == kNumBlocks &&
           open_calls_.count() == 0;
  }
  bool BecomesIdle() const {
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    while (!Idle()) {
      if (absl::Now() > limit) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }
  // One step every few milliseconds; how many it took until nothing ran.
  int StepsUntilIdle() {
    int steps = 0;
    for (; !Idle() && steps < 1000; ++steps) {
      backend_.Allow(1);
      absl::SleepFor(absl::Milliseconds(5));
    }
    return steps;
  }

  double Finished(const std::string& reason) {
    return registry_.Counter("ridge_request_success_total", "", {{"finished_reason", reason}}).Value();
  }

  const ServedModel model_ = SmallModel();
  MetricsRegistry registry_;
  EngineMetrics metrics_{&registry_};
  HeldBackend backend_;
  OpenCalls open_calls_;
  std::unique_ptr<Engine> engine_;
  TaskPool tasks_;
  std::unique_ptr<InferenceService> inference_service_;
  std::unique_ptr<WorkerService> worker_service_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Worker::Stub> worker_;
};

}  // namespace ridge::worker
