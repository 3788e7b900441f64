#include "worker/service/worker_service.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/service/service_fixture.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAreArray;

class WorkerServiceTest : public ServiceTest {
 protected:
  struct Executed : Streamed {
    v1::ResolvedRequest resolved;
  };

  Executed Execute(const v1::ExecuteRequest& request) {
    grpc::ClientContext context;
    const auto reader = worker_->Execute(&context, request);
    Executed executed;
    v1::ExecuteResponse message;
    if (reader->Read(&message)) {
      EXPECT_TRUE(message.has_resolved()) << "the first message";
      executed.resolved = message.resolved();
    }
    while (reader->Read(&message)) {
      EXPECT_TRUE(message.has_response());
      Take(message.response(), &executed);
    }
    executed.status = reader->Finish();
    return executed;
  }
};

v1::ExecuteRequest Request(const std::string& text) {
  v1::ExecuteRequest request;
  request.set_internal_id("id-1");
  *request.mutable_request() = FromText<v1::GenerateRequest>(text);
  return request;
}

TEST_F(WorkerServiceTest, ExecuteResolvesThenStreams) {
  const Executed executed = Execute(Request("prompt: 'ab' max_tokens: 12 ignore_eos: true"));
  ASSERT_TRUE(executed.status.ok()) << executed.status.error_message();
  EXPECT_THAT(executed.ids, ElementsAreArray(FakeBackend::Generate({'a', 'b'}, 12)));
  EXPECT_EQ(executed.summary.usage().completion_tokens(), 12);
  EXPECT_THAT(executed.resolved.request().prompt_ids().ids(), testing::ElementsAre('a', 'b'));
  EXPECT_EQ(executed.resolved.request().sampling().seed(), executed.summary.seed());
  EXPECT_EQ(executed.resolved.numerics_id(), "small-numerics");
}

TEST_F(WorkerServiceTest, ExecuteRunsAResolvedRequest) {
  const Executed first = Execute(Request("prompt: 'ab' max_tokens: 12"));
  v1::ExecuteRequest again;
  again.set_internal_id("id-2");
  *again.mutable_resolved() = first.resolved;
  const Executed second = Execute(again);
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(second.text, first.text);
  EXPECT_EQ(second.summary.seed(), first.summary.seed());
}

TEST_F(WorkerServiceTest, ExecuteNamesWhatIsWrong) {
  v1::ExecuteRequest request = Request("prompt: 'a'");
  request.set_internal_id("");
  EXPECT_EQ(Execute(request).status.error_message(), "internal_id: required");
  request = v1::ExecuteRequest();
  request.set_internal_id("id");
  EXPECT_EQ(Execute(request).status.error_message(), "work: one of request, resolved is required");
  request = Request("prompt: 'a'");
  request.add_resume()->add_output_ids(1);
  EXPECT_EQ(Execute(request).status.error_message(), "resume: not supported yet");
  request.clear_resume();
  request.mutable_request()->set_prompt("\xff");
  EXPECT_EQ(Execute(request).status.error_message(), "request.prompt: not valid UTF-8");
}

TEST_F(WorkerServiceTest, ALoadReportComesAtOnceAndWhenTheLoadChanges) {
  grpc::ClientContext watch_context;
  const auto reports = worker_->WatchLoad(&watch_context, v1::WatchLoadRequest());
  v1::LoadReport report;
  ASSERT_TRUE(reports->Read(&report));
  EXPECT_TRUE(report.accepting());
  EXPECT_EQ(report.running_requests(), 0);

  backend_.Allow(1);
  grpc::ClientContext context;
  const auto reader =
      inference_->Generate(&context, FromText<v1::GenerateRequest>("prompt: 'a' ignore_eos: true"));
  while (report.running_requests() == 0) ASSERT_TRUE(reports->Read(&report));
  EXPECT_LT(report.kv_free_tokens(), int64_t{kNumBlocks} * kBlockTokens);
  context.TryCancel();
  reader->Finish();
  backend_.Allow(INT64_MAX);
  while (report.running_requests() != 0) ASSERT_TRUE(reports->Read(&report));
  watch_context.TryCancel();
  while (reports->Read(&report)) continue;
  EXPECT_EQ(reports->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WorkerServiceTest, AnUnchangedLoadIsReportedEverySecond) {
  grpc::ClientContext context;
  const auto reports = worker_->WatchLoad(&context, v1::WatchLoadRequest());
  v1::LoadReport report;
  ASSERT_TRUE(reports->Read(&report));
  const absl::Time first = absl::Now();
  ASSERT_TRUE(reports->Read(&report));
  EXPECT_GT(absl::Now() - first, absl::Milliseconds(500));
  EXPECT_LT(absl::Now() - first, absl::Seconds(5));  // a second, on a machine that may be busy
  context.TryCancel();
  reports->Finish();
}

TEST_F(WorkerServiceTest, DrainReturnsWhenTheLastStreamEnded) {
  backend_.Allow(1);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(
      &context, FromText<v1::GenerateRequest>("prompt: 'a' max_tokens: 10 ignore_eos: true"));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));

  absl::Notification drained;
  std::thread drain([this, &drained] {
    grpc::ClientContext drain_context;
    v1::DrainResponse response;
    EXPECT_TRUE(worker_->Drain(&drain_context, v1::DrainRequest(), &response).ok());
    drained.Notify();
  });
  while (!engine_->Load().draining) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(Generate("prompt: 'b'").status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(drained.WaitForNotificationWithTimeout(absl::Milliseconds(250)));

  backend_.Allow(INT64_MAX);
  Streamed rest;
  rest.messages = 1;
  rest.ids = {message.choices(0).tokens(0).id()};
  while (reader->Read(&message)) Take(message, &rest);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(rest.ids, ElementsAreArray(FakeBackend::Generate({'a'}, 10)));
  drain.join();
}

TEST_F(WorkerServiceTest, CloseEndsWatchesAndDrains) {
  grpc::ClientContext context;
  const auto reports = worker_->WatchLoad(&context, v1::WatchLoadRequest());
  v1::LoadReport report;
  ASSERT_TRUE(reports->Read(&report));
  worker_service_->Close();
  while (reports->Read(&report)) continue;
  EXPECT_EQ(reports->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace ridge::worker
